// Command compat runs the stock Go client for the Python tests: one action per run, JSON lines on standard output.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

var (
	action  = flag.String("do", "", "send, tx, push, orderly, poll, pullfrom, request or reply")
	namesrv = flag.String("namesrv", "", "host:port")
	topic   = flag.String("topic", "", "topic")
	group   = flag.String("group", "GoGroup", "producer or consumer group")
	tags    = flag.String("tags", "*", "tag expression of a consumer")
	sql     = flag.String("sql", "", "SQL92 expression of a consumer, instead of tags")
	count   = flag.Int("count", 1, "messages of each kind to send, or to wait for")
	fail    = flag.Int("fail", 0, "a push consumer fails a message until it was tried so often")
	queueID = flag.Int("queue", 0, "queue of pullfrom")
	broker  = flag.String("broker", "", "broker name of pullfrom")
	access  = flag.String("access", "", "access key that signs")
	secret  = flag.String("secret", "", "its secret key")
	wait    = flag.Duration("wait", 60*time.Second, "how long a consumer waits for its messages")
)

var output sync.Mutex

func say(fields map[string]any) {
	output.Lock()
	defer output.Unlock()
	line, err := json.Marshal(fields)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// keys are those of -access and -secret; without them nothing is signed.
func keys() primitive.Credentials {
	return primitive.Credentials{AccessKey: *access, SecretKey: *secret}
}

func main() {
	flag.Parse()
	log.SetOutput(os.Stderr)
	rlog.SetLogLevel("error")
	switch *action {
	case "send":
		send()
	case "tx":
		transact()
	case "push":
		push(false)
	case "orderly":
		push(true)
	case "poll":
		poll()
	case "pullfrom":
		pullFrom()
	case "request":
		request()
	case "reply":
		reply()
	default:
		log.Fatalf("no such action: %q", *action)
	}
}

func message(kind string, number int) *primitive.Message {
	body := fmt.Sprintf("%s %d", kind, number)
	if kind == "large" {
		body += strings.Repeat(" deflate me", 1000)
	}
	m := primitive.NewMessage(*topic, []byte(body))
	m.WithTag(kind).WithKeys([]string{body[:len(kind)], fmt.Sprintf("%s-%d", kind, number)})
	m.WithProperty("from", "gö")
	return m
}

func send() {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{*namesrv}),
		producer.WithGroupName(*group),
		producer.WithCredentials(keys()),
		producer.WithSendMsgTimeout(10*time.Second),
		producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()),
	)
	must(err)
	must(p.Start())
	ctx := context.Background()
	report := func(kind string, result *primitive.SendResult) {
		say(map[string]any{
			"kind": kind, "ok": result.Status == primitive.SendOK, "msgId": result.MsgID,
			"offsetMsgId": result.OffsetMsgID, "queueId": result.MessageQueue.QueueId,
			"queueOffset": result.QueueOffset, "broker": result.MessageQueue.BrokerName,
		})
	}
	for i := 0; i < *count; i++ {
		result, err := p.SendSync(ctx, message("sync", i))
		must(err)
		report("sync", result)
	}
	var open sync.WaitGroup
	for i := 0; i < *count; i++ {
		open.Add(1)
		must(p.SendAsync(ctx, func(_ context.Context, result *primitive.SendResult, err error) {
			defer open.Done()
			must(err)
			report("async", result)
		}, message("async", i)))
	}
	open.Wait()
	for i := 0; i < *count; i++ {
		must(p.SendOneWay(ctx, message("oneway", i)))
	}
	var batch []*primitive.Message
	for i := 0; i < *count; i++ {
		batch = append(batch, message("batch", i))
	}
	result, err := p.SendSync(ctx, batch...)
	must(err)
	report("batch", result)
	result, err = p.SendSync(ctx, message("large", 0))
	must(err)
	report("large", result)
	must(p.Shutdown())
}

// states ends transactions as the tags of their messages say, and commits what the broker asks about.
type states struct {
	asked chan *primitive.MessageExt
}

func (s states) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch m.GetTags() {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (s states) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	s.asked <- m
	return primitive.CommitMessageState
}

func transact() {
	listener := states{make(chan *primitive.MessageExt, 1000)}
	p, err := rocketmq.NewTransactionProducer(listener,
		producer.WithNameServer([]string{*namesrv}),
		producer.WithGroupName(*group),
		producer.WithSendMsgTimeout(10*time.Second),
	)
	must(err)
	must(p.Start())
	for i := 0; i < *count; i++ {
		for _, kind := range []string{"commit", "rollback", "later"} {
			result, err := p.SendMessageInTransaction(context.Background(), message(kind, i))
			must(err)
			say(map[string]any{"kind": kind, "ok": result.Status == primitive.SendOK, "msgId": result.MsgID})
		}
	}
	for i := 0; i < *count; i++ {
		select {
		case m := <-listener.asked:
			say(map[string]any{"kind": "asked", "body": string(m.Body), "topic": m.Topic})
		case <-time.After(*wait):
			log.Fatalf("asked about %d messages only", i)
		}
	}
	time.Sleep(2 * time.Second) // its answers are on their way
	must(p.Shutdown())
}

func received(m *primitive.MessageExt) map[string]any {
	return map[string]any{
		"body": string(m.Body), "tags": m.GetTags(), "keys": m.GetKeys(), "msgId": m.MsgId,
		"offsetMsgId": m.OffsetMsgId, "queueId": m.Queue.QueueId, "queueOffset": m.QueueOffset,
		"reconsumeTimes": m.ReconsumeTimes, "from": m.GetProperty("from"), "topic": m.Topic,
		"storeHost": m.StoreHost,
	}
}

func selector() consumer.MessageSelector {
	if *sql != "" {
		return consumer.MessageSelector{Type: consumer.SQL92, Expression: *sql}
	}
	return consumer.MessageSelector{Type: consumer.TAG, Expression: *tags}
}

func push(orderly bool) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithCredentials(keys()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(orderly),
	)
	must(err)
	done := make(chan struct{})
	var mutex sync.Mutex
	seen := 0
	must(c.Subscribe(*topic, selector(), func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		result := consumer.ConsumeSuccess
		for _, m := range messages {
			say(received(m))
			if int(m.ReconsumeTimes) < *fail {
				result = consumer.ConsumeRetryLater
			}
			mutex.Lock()
			if seen++; seen == *count {
				close(done)
			}
			mutex.Unlock()
		}
		return result, nil
	}))
	must(c.Start())
	select {
	case <-done:
	case <-time.After(*wait):
		log.Fatalf("only %d of %d messages came", seen, *count)
	}
	must(c.Shutdown())
}

func pullConsumer() rocketmq.PullConsumer {
	c, err := rocketmq.NewPullConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithCredentials(keys()),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	must(c.Subscribe(*topic, selector()))
	must(c.Start())
	return c
}

func poll() {
	c := pullConsumer()
	deadline := time.Now().Add(*wait)
	for seen := 0; seen < *count; {
		if time.Now().After(deadline) {
			log.Fatalf("only %d of %d messages came", seen, *count)
		}
		request, err := c.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) || errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		must(err)
		for _, m := range request.GetMsgList() {
			say(received(m))
			seen++
		}
		c.ACK(context.Background(), request, consumer.ConsumeSuccess)
	}
	must(c.Shutdown())
}

func pullFrom() {
	c := pullConsumer()
	queue := &primitive.MessageQueue{Topic: *topic, BrokerName: *broker, QueueId: *queueID}
	deadline := time.Now().Add(*wait)
	for offset := int64(0); offset < int64(*count); {
		if time.Now().After(deadline) {
			log.Fatalf("read up to %d of %d", offset, *count)
		}
		result, err := c.PullFrom(context.Background(), queue, offset, 8)
		must(err)
		if result.Status != primitive.PullFound {
			continue
		}
		for _, m := range result.GetMessageExts() {
			say(received(m))
		}
		offset = result.NextBeginOffset
	}
	must(c.Shutdown())
}

// request asks for replies, one after the other and then all at once.
func request() {
	p, err := rocketmq.NewProducer(
		producer.WithNameServer([]string{*namesrv}),
		producer.WithGroupName(*group),
	)
	must(err)
	must(p.Start())
	// The producer of this release tells brokers of itself only 30 s after it knows their addresses. A consumer
	// of the same process does it at once, for both.
	c, err := rocketmq.NewPushConsumer(consumer.WithNameServer([]string{*namesrv}), consumer.WithGroupName(*group+"_known"))
	must(err)
	everything := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	must(c.Subscribe(*topic, everything, func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	ctx := context.Background()
	report := func(kind string, reply *primitive.Message) {
		say(map[string]any{"kind": kind, "body": string(reply.Body), "own": reply.GetProperty("own")})
	}
	for i := 0; i < *count; i++ {
		answer, err := p.Request(ctx, *wait, message("sync", i))
		must(err)
		report("sync", answer)
	}
	var open sync.WaitGroup
	for i := 0; i < *count; i++ {
		open.Add(1)
		var once sync.Once // this client calls back twice
		must(p.RequestAsync(ctx, *wait, func(_ context.Context, answer *primitive.Message, err error) {
			once.Do(func() {
				must(err)
				report("async", answer)
				open.Done()
			})
		}, message("async", i)))
	}
	open.Wait()
	must(c.Shutdown())
	must(p.Shutdown())
}

// reply answers requests with their bodies in capitals.
func reply() {
	p, err := rocketmq.NewProducer(producer.WithNameServer([]string{*namesrv}), producer.WithGroupName(*group))
	must(err)
	must(p.Start())
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	answered := make(chan struct{}, *count)
	everything := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	must(c.Subscribe(*topic, everything, func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range messages {
			answer, err := consumer.CreateReplyMessage(m, nil)
			must(err)
			answer.Body = []byte(strings.ToUpper(string(m.Body))) // CreateReplyMessage forgets it
			result, err := p.SendSync(ctx, answer)
			must(err)
			say(map[string]any{"body": string(answer.Body), "ok": result.Status == primitive.SendOK})
			answered <- struct{}{}
		}
		return consumer.ConsumeSuccess, nil
	}))
	must(c.Start())
	for i := 0; i < *count; i++ {
		select {
		case <-answered:
		case <-time.After(*wait):
			log.Fatalf("only %d of %d requests came", i, *count)
		}
	}
	must(c.Shutdown())
	must(p.Shutdown())
}
