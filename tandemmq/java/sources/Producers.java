import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Stock producers by name. */
final class Producers {
    private final Map<String, DefaultMQProducer> byName = new ConcurrentHashMap<>();

    Object start(JSONObject c) throws Exception {
        DefaultMQProducer producer = c.containsKey("traceTopic")
            ? new DefaultMQProducer(c.getString("group"), Texts.signing(c), true, c.getString("traceTopic"))
            : new DefaultMQProducer(c.getString("group"), Texts.signing(c));
        if (c.containsKey("accessKey")) {
            producer.setInstanceName(Texts.instance(c));
        }
        producer.setNamesrvAddr(c.getString("namesrv"));
        producer.setSendMsgTimeout(c.containsKey("timeoutMs") ? c.getIntValue("timeoutMs") : 10000);
        if (c.containsKey("compressOver")) {
            producer.setCompressMsgBodyOverHowmuch(c.getIntValue("compressOver"));
        }
        if (c.containsKey("vip")) {
            producer.setVipChannelEnabled(c.getBooleanValue("vip"));
        }
        producer.start();
        byName.put(c.getString("name"), producer);
        return Collections.emptyMap();
    }

    Object stop(JSONObject c) {
        byName.remove(c.getString("name")).shutdown();
        return Collections.emptyMap();
    }

    Object queues(JSONObject c) throws Exception {
        List<Object> queues = new ArrayList<>();
        for (MessageQueue queue : producer(c).fetchPublishMessageQueues(c.getString("topic"))) {
            queues.add(Texts.queue(queue));
        }
        return queues;
    }

    Object sendSync(JSONObject c) throws Exception {
        List<Object> results = new ArrayList<>();
        for (Message message : Texts.messages(c)) {
            results.add(Texts.sent(producer(c).send(message)));
        }
        return results;
    }

    Object sendOneway(JSONObject c) throws Exception {
        for (Message message : Texts.messages(c)) {
            producer(c).sendOneway(message);
        }
        return Collections.emptyList();
    }

    Object sendBatch(JSONObject c) throws Exception {
        return Texts.sent(producer(c).send(Texts.messages(c)));
    }

    Object sendToQueue(JSONObject c) throws Exception {
        MessageQueue queue = Texts.queue(c);
        List<Object> results = new ArrayList<>();
        for (Message message : Texts.messages(c)) {
            results.add(Texts.sent(producer(c).send(message, queue)));
        }
        return results;
    }

    /** Sends each message to the queue its "arg" (modulo the number of queues) picks. */
    Object sendSelector(JSONObject c) throws Exception {
        JSONArray list = c.getJSONArray("messages");
        List<Message> messages = Texts.messages(c);
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            Integer arg = list.getJSONObject(i).getInteger("arg");
            results.add(Texts.sent(producer(c).send(
                messages.get(i), (queues, message, chosen) -> queues.get((Integer) chosen % queues.size()), arg)));
        }
        return results;
    }

    Object sendAsync(JSONObject c) throws Exception {
        List<Message> messages = Texts.messages(c);
        Object[] results = new Object[messages.size()];
        CountDownLatch open = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int at = i;
            producer(c).send(messages.get(i), new SendCallback() {
                @Override public void onSuccess(SendResult result) {
                    results[at] = Texts.sent(result);
                    open.countDown();
                }

                @Override public void onException(Throwable failure) {
                    results[at] = failed(failure);
                    open.countDown();
                }
            });
        }
        if (!open.await(30, TimeUnit.SECONDS)) {
            throw new IllegalStateException(open.getCount() + " async sends got no callback");
        }
        return Arrays.asList(results);
    }

    /** Requests one after the other; of each its reply, or what the client threw. */
    Object requestSync(JSONObject c) {
        List<Object> replies = new ArrayList<>();
        for (Message message : Texts.messages(c)) {
            try {
                replies.add(Texts.received((MessageExt) producer(c).request(message, c.getLongValue("timeoutMs"))));
            } catch (Exception failure) {
                replies.add(failed(failure));
            }
        }
        return replies;
    }

    /**
     * Requests all at once, with a callback each. The stock client calls back without a message when the send is
     * answered before the reply has come, and once more when it comes: only the reply counts.
     */
    Object requestAsync(JSONObject c) throws Exception {
        List<Message> messages = Texts.messages(c);
        Object[] replies = new Object[messages.size()];
        CountDownLatch open = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            int at = i;
            producer(c).request(messages.get(i), new RequestCallback() {
                @Override public void onSuccess(Message reply) {
                    if (reply == null) {
                        return;
                    }
                    answered(Texts.received((MessageExt) reply));
                }

                @Override public void onException(Throwable failure) {
                    answered(failed(failure));
                }

                private synchronized void answered(Object reply) {
                    if (replies[at] == null) {
                        replies[at] = reply;
                        open.countDown();
                    }
                }
            }, c.getLongValue("timeoutMs"));
        }
        if (!open.await(c.getLongValue("timeoutMs") + 5000, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(open.getCount() + " requests got no callback");
        }
        return Arrays.asList(replies);
    }

    private static Map<String, Object> failed(Throwable failure) {
        return Collections.singletonMap("error", String.valueOf(failure));
    }

    /** Answers a request with its body in capitals. */
    void reply(String producer, MessageExt request) {
        try {
            String body = new String(request.getBody(), StandardCharsets.UTF_8).toUpperCase();
            Message reply = MessageUtil.createReplyMessage(request, body.getBytes(StandardCharsets.UTF_8));
            byName.get(producer).send(reply);
        } catch (Exception failure) {
            failure.printStackTrace();
        }
    }

    Object recall(JSONObject c) {
        return Texts.invoke(producer(c), "recallMessage", new Class<?>[] {String.class, String.class},
            c.getString("topic"), c.getString("handle"));
    }

    private DefaultMQProducer producer(JSONObject c) {
        DefaultMQProducer producer = byName.get(c.getString("name"));
        if (producer == null) {
            throw new IllegalArgumentException("no producer " + c.getString("name"));
        }
        return producer;
    }
}
