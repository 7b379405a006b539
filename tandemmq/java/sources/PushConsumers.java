import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** Stock push consumers by name; each delivered message becomes an event "message". */
final class PushConsumers {
    private final Map<String, DefaultMQPushConsumer> byName = new ConcurrentHashMap<>();
    private final Producers producers;

    PushConsumers(Producers producers) {
        this.producers = producers;
    }

    Object start(JSONObject c) throws Exception {
        String name = c.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            c.getString("group"), Texts.signing(c), new AllocateMessageQueueAveragely(),
            c.containsKey("traceTopic"), c.containsKey("traceTopic") ? c.getString("traceTopic") : null);
        if (c.containsKey("accessKey")) {
            consumer.setInstanceName(Texts.instance(c));
        }
        consumer.setNamesrvAddr(c.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            c.containsKey("from") ? c.getString("from") : "CONSUME_FROM_FIRST_OFFSET"));
        if (c.containsKey("timestamp")) {
            consumer.setConsumeTimestamp(c.getString("timestamp"));
        }
        if (c.getBooleanValue("broadcasting")) {
            setBroadcasting(consumer);
        }
        if (c.containsKey("instance")) {
            consumer.setInstanceName(c.getString("instance"));
        }
        if (c.containsKey("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes(c.getIntValue("maxReconsumeTimes"));
        }
        if (c.containsKey("suspendMs")) {
            consumer.setSuspendCurrentQueueTimeMillis(c.getLongValue("suspendMs"));
        }
        if (c.containsKey("sql")) {
            consumer.subscribe(c.getString("topic"), MessageSelector.bySql(c.getString("sql")));
        } else {
            consumer.subscribe(c.getString("topic"), c.containsKey("expression") ? c.getString("expression") : "*");
        }
        int failUntil = c.getIntValue("failUntil");
        if (c.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean failed = report(name, messages, failUntil);
                return failed ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean failed = report(name, messages, failUntil);
                if (c.containsKey("replier")) {
                    messages.forEach(request -> producers.reply(c.getString("replier"), request));
                }
                if (failed && c.containsKey("retryLevel")) {
                    context.setDelayLevelWhenNextConsume(c.getIntValue("retryLevel"));
                }
                return failed ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(4);
        consumer.start();
        byName.put(name, consumer);
        return Collections.singletonMap("clientId", consumer.buildMQClientId());
    }

    Object stop(JSONObject c) {
        byName.remove(c.getString("name")).shutdown();
        return Collections.emptyMap();
    }

    /** Pulls no more; what a pull on its way brings is delivered. */
    Object suspend(JSONObject c) {
        byName.get(c.getString("name")).suspend();
        return Collections.emptyMap();
    }

    Object resume(JSONObject c) {
        byName.get(c.getString("name")).resume();
        return Collections.emptyMap();
    }

    /** The queues that this consumer reads now. */
    Object queues(JSONObject c) {
        List<Object> queues = new ArrayList<>();
        byName.get(c.getString("name")).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .keySet().forEach(queue -> queues.add(Texts.queue(queue)));
        return queues;
    }

    /** How many messages it was given and has not counted as consumed: its listener may have returned from them. */
    Object unfinished(JSONObject c) {
        return byName.get(c.getString("name")).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .values().stream().mapToLong(queue -> queue.getMsgCount().get()).sum();
    }

    /** Says what arrived; true if the listener shall fail because a message was not yet tried failUntil times. */
    private static boolean report(String name, List<MessageExt> messages, int failUntil) {
        boolean failed = false;
        for (MessageExt message : messages) {
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("consumer", name);
            fields.put("atMs", System.currentTimeMillis());
            fields.put("thread", Thread.currentThread().getName());
            fields.put("message", Texts.received(message));
            Driver.event("message", fields);
            failed |= message.getReconsumeTimes() < failUntil;
        }
        return failed;
    }

    /** setMessageModel(BROADCASTING) without naming the enum, which changed its package in 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws ReflectiveOperationException {
        Class model = DefaultMQPushConsumer.class.getMethod("getMessageModel").getReturnType();
        DefaultMQPushConsumer.class.getMethod("setMessageModel", model)
            .invoke(consumer, Enum.valueOf(model, "BROADCASTING"));
    }
}
