import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Stock pull and lite pull consumers by name, and the questions that every client may ask. */
@SuppressWarnings("deprecation")
final class Pulls {
    private final Map<String, DefaultMQPullConsumer> byName = new ConcurrentHashMap<>();
    private final Map<String, DefaultLitePullConsumer> lites = new ConcurrentHashMap<>();
    private DefaultMQAdminExt admin;

    Object start(JSONObject c) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(c.getString("group"), Texts.signing(c));
        if (c.containsKey("accessKey")) {
            consumer.setInstanceName(Texts.instance(c));
        }
        consumer.setNamesrvAddr(c.getString("namesrv"));
        consumer.start();
        byName.put(c.getString("name"), consumer);
        return Collections.emptyMap();
    }

    Object stop(JSONObject c) {
        byName.remove(c.getString("name")).shutdown();
        return Collections.emptyMap();
    }

    Object queues(JSONObject c) throws Exception {
        List<Object> queues = new ArrayList<>();
        for (MessageQueue queue : consumer(c).fetchSubscribeMessageQueues(c.getString("topic"))) {
            queues.add(Texts.queue(queue));
        }
        return queues;
    }

    Object pull(JSONObject c) throws Exception {
        String expression = c.containsKey("expression") ? c.getString("expression") : "*";
        int max = c.containsKey("max") ? c.getIntValue("max") : 32;
        long offset = c.getLongValue("offset");
        PullResult result = c.containsKey("sql") ? pullBySql(c, offset, max) : c.getBooleanValue("block")
            ? consumer(c).pullBlockIfNotFound(Texts.queue(c), expression, offset, max)
            : consumer(c).pull(Texts.queue(c), expression, offset, max);
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("status", result.getPullStatus().name());
        map.put("next", result.getNextBeginOffset());
        map.put("min", result.getMinOffset());
        map.put("max", result.getMaxOffset());
        map.put("messages", Texts.received(result.getMsgFoundList()));
        return map;
    }

    /** Before it knows the broker's version, by a heartbeat's answer, a client refuses to pull by SQL92. */
    private PullResult pullBySql(JSONObject c, long offset, int max) throws Exception {
        consumer(c).fetchSubscribeMessageQueues(c.getString("topic"));
        consumer(c).getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory()
            .sendHeartbeatToAllBrokerWithLock();
        return consumer(c).pull(Texts.queue(c), MessageSelector.bySql(c.getString("sql")), offset, max);
    }

    /** Every message of one queue from "offset" (0) on, until the broker has no more. */
    Object drain(JSONObject c) throws Exception {
        List<Object> messages = new ArrayList<>();
        long offset = c.getLongValue("offset");
        while (true) {
            PullResult result = consumer(c).pull(Texts.queue(c), "*", offset, 32);
            messages.addAll(Texts.received(result.getMsgFoundList()));
            switch (result.getPullStatus()) {
                case FOUND:
                case NO_MATCHED_MSG:
                    offset = result.getNextBeginOffset();
                    break;
                case OFFSET_ILLEGAL:
                    if (result.getNextBeginOffset() > offset && result.getNextBeginOffset() < result.getMaxOffset()) {
                        offset = result.getNextBeginOffset();
                        break;
                    }
                    return messages;
                default:
                    return messages;
            }
        }
    }

    Object offsets(JSONObject c) throws Exception {
        MessageQueue queue = Texts.queue(c);
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("min", consumer(c).minOffset(queue));
        map.put("max", consumer(c).maxOffset(queue));
        map.put("earliestMs", consumer(c).earliestMsgStoreTime(queue));
        if (c.containsKey("timeMs")) {
            map.put("atTime", consumer(c).searchOffset(queue, c.getLongValue("timeMs")));
        }
        return map;
    }

    Object commit(JSONObject c) throws Exception {
        consumer(c).getDefaultMQPullConsumerImpl().getOffsetStore()
            .updateConsumeOffsetToBroker(Texts.queue(c), c.getLongValue("offset"), false);
        return Collections.emptyMap();
    }

    Object committed(JSONObject c) throws Exception {
        return consumer(c).fetchConsumeOffset(Texts.queue(c), true);
    }

    Object view(JSONObject c) throws Exception {
        return Texts.received(consumer(c).viewMessage(c.getString("topic"), c.getString("msgId")));
    }

    Object query(JSONObject c) throws Exception {
        QueryResult result = consumer(c).queryMessage(
            c.getString("topic"), c.getString("key"), c.containsKey("max") ? c.getIntValue("max") : 32,
            c.getLongValue("beginMs"), c.containsKey("endMs") ? c.getLongValue("endMs") : Long.MAX_VALUE);
        return Texts.received(result.getMessageList());
    }

    Object createTopic(JSONObject c) throws Exception {
        TopicConfig config = new TopicConfig(c.getString("topic"));
        int queues = c.containsKey("queues") ? c.getIntValue("queues") : 4;
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        config.setPerm(c.containsKey("perm") ? c.getIntValue("perm") : 6);
        admin(c.getString("namesrv")).createAndUpdateTopicConfig(c.getString("address"), config);
        return Collections.emptyMap();
    }

    Object liteStart(JSONObject c) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(c.getString("group"));
        consumer.setNamesrvAddr(c.getString("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(
            c.containsKey("from") ? c.getString("from") : "CONSUME_FROM_FIRST_OFFSET"));
        consumer.setAutoCommit(c.getBooleanValue("autoCommit"));
        consumer.setPullThreadNums(4);
        String topic = c.getString("topic");
        if (c.getBooleanValue("assign")) {
            consumer.start();
            consumer.assign(consumer.fetchMessageQueues(topic));
        } else if (c.containsKey("sql")) {
            consumer.subscribe(topic, MessageSelector.bySql(c.getString("sql")));
            consumer.start();
        } else {
            consumer.subscribe(topic, c.containsKey("expression") ? c.getString("expression") : "*");
            consumer.start();
        }
        lites.put(c.getString("name"), consumer);
        return Collections.emptyMap();
    }

    Object liteStop(JSONObject c) {
        lites.remove(c.getString("name")).shutdown();
        return Collections.emptyMap();
    }

    /** Polls until "count" messages came or "waitMs" (15 s) went by. */
    Object litePoll(JSONObject c) {
        long until = System.currentTimeMillis() + (c.containsKey("waitMs") ? c.getLongValue("waitMs") : 15000L);
        List<MessageExt> messages = new ArrayList<>();
        while (messages.size() < c.getIntValue("count") && System.currentTimeMillis() < until) {
            messages.addAll(lites.get(c.getString("name")).poll(500));
        }
        return Texts.received(messages);
    }

    Object liteSeek(JSONObject c) throws Exception {
        lites.get(c.getString("name")).seek(Texts.queue(c), c.getLongValue("offset"));
        return Collections.emptyMap();
    }

    Object liteCommit(JSONObject c) {
        Map<MessageQueue, Long> offsets = new LinkedHashMap<>();
        offsets.put(Texts.queue(c), c.getLongValue("offset"));
        lites.get(c.getString("name")).commitSync(offsets, true);
        return Collections.emptyMap();
    }

    Object liteCommitted(JSONObject c) throws Exception {
        return lites.get(c.getString("name")).committed(Texts.queue(c));
    }

    Object liteOffsetForTime(JSONObject c) throws Exception {
        return lites.get(c.getString("name")).offsetForTimestamp(Texts.queue(c), c.getLongValue("timeMs"));
    }

    /** One admin client for all: stopping one takes 5.x three seconds now and then. */
    private synchronized DefaultMQAdminExt admin(String nameServers) throws Exception {
        if (admin == null) {
            DefaultMQAdminExt started = new DefaultMQAdminExt(5000L);
            started.setNamesrvAddr(nameServers);
            started.setInstanceName("admin-" + System.nanoTime());
            started.start();
            admin = started;
        }
        return admin;
    }

    private DefaultMQPullConsumer consumer(JSONObject c) {
        DefaultMQPullConsumer consumer = byName.get(c.getString("name"));
        if (consumer == null) {
            throw new IllegalArgumentException("no pull consumer " + c.getString("name"));
        }
        return consumer;
    }
}
