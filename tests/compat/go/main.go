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
	action  = flag.String("do", "", "send, push, orderly, poll or pullfrom")
	namesrv = flag.String("namesrv", "", "host:port")
	topic   = flag.String("topic", "", "topic")
	group   = flag.String("group", "GoGroup", "producer or consumer group")
	tags    = flag.String("tags", "*", "tag expression of a consumer")
	count   = flag.Int("count", 1, "messages of each kind to send, or to wait for")
	fail    = flag.Int("fail", 0, "a push consumer fails a message until it was tried so often")
	queueID = flag.Int("queue", 0, "queue of pullfrom")
	broker  = flag.String("broker", "", "broker name of pullfrom")
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

func main() {
	flag.Parse()
	log.SetOutput(os.Stderr)
	rlog.SetLogLevel("error")
	switch *action {
	case "send":
		send()
	case "push":
		push(false)
	case "orderly":
		push(true)
	case "poll":
		poll()
	case "pullfrom":
		pullFrom()
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

func received(m *primitive.MessageExt) map[string]any {
	return map[string]any{
		"body": string(m.Body), "tags": m.GetTags(), "keys": m.GetKeys(), "msgId": m.MsgId,
		"offsetMsgId": m.OffsetMsgId, "queueId": m.Queue.QueueId, "queueOffset": m.QueueOffset,
		"reconsumeTimes": m.ReconsumeTimes, "from": m.GetProperty("from"), "topic": m.Topic,
		"storeHost": m.StoreHost,
	}
}

func push(orderly bool) {
	c, err := rocketmq.NewPushConsumer(
		consumer.WithNameServer([]string{*namesrv}),
		consumer.WithGroupName(*group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(orderly),
	)
	must(err)
	done := make(chan struct{})
	var mutex sync.Mutex
	seen := 0
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: *tags}
	must(c.Subscribe(*topic, selector, func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
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
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	must(err)
	must(c.Subscribe(*topic, consumer.MessageSelector{Type: consumer.TAG, Expression: *tags}))
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
