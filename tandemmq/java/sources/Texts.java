import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** Turns client objects into plain maps for the wire to Python, and back. */
final class Texts {
    /** What signs the requests of a client with an access key; clients that share an instance share it. */
    static RPCHook signing(JSONObject c) {
        if (!c.containsKey("accessKey")) {
            return null;
        }
        return new AclClientRPCHook(new SessionCredentials(c.getString("accessKey"), c.getString("secretKey")));
    }

    static String instance(JSONObject c) {
        return "of-" + c.getString("accessKey") + "-" + c.getString("name") + "-" + System.nanoTime();
    }

    /** Bodies up to this many bytes are shown whole; every body is shown by its SHA-256. */
    private static final int BODY_SHOWN_BYTES = 2048;

    private Texts() {
    }

    static Message message(String topic, JSONObject m) {
        byte[] body = m.containsKey("body64")
            ? Base64.getDecoder().decode(m.getString("body64"))
            : m.getString("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(m.containsKey("topic") ? m.getString("topic") : topic, body);
        if (m.containsKey("tags")) {
            message.setTags(m.getString("tags"));
        }
        if (m.containsKey("keys")) {
            message.setKeys(m.getString("keys"));
        }
        if (m.containsKey("flag")) {
            message.setFlag(m.getIntValue("flag"));
        }
        if (m.containsKey("delay")) {
            message.setDelayTimeLevel(m.getIntValue("delay"));
        }
        for (String setter : new String[] {"setDelayTimeSec", "setDelayTimeMs", "setDeliverTimeMs"}) { // of 5.x
            if (m.containsKey(setter)) {
                invoke(message, setter, new Class<?>[] {long.class}, m.getLongValue(setter));
            }
        }
        if (m.containsKey("wait")) {
            message.setWaitStoreMsgOK(m.getBooleanValue("wait"));
        }
        if (m.containsKey("properties")) {
            for (Map.Entry<String, Object> property : m.getJSONObject("properties").entrySet()) {
                message.putUserProperty(property.getKey(), String.valueOf(property.getValue()));
            }
        }
        if (m.containsKey("ownProperties")) { // those that putUserProperty keeps for RocketMQ itself
            for (Map.Entry<String, Object> property : m.getJSONObject("ownProperties").entrySet()) {
                MessageAccessor.putProperty(message, property.getKey(), String.valueOf(property.getValue()));
            }
        }
        return message;
    }

    /** Calls what only some releases have. */
    static Object invoke(Object on, String name, Class<?>[] types, Object... arguments) {
        try {
            return on.getClass().getMethod(name, types).invoke(on, arguments);
        } catch (java.lang.reflect.InvocationTargetException failure) {
            throw Texts.<RuntimeException>asIs(failure.getCause());
        } catch (ReflectiveOperationException absent) {
            throw new IllegalArgumentException("not in this release: " + name, absent);
        }
    }

    @SuppressWarnings("unchecked")
    private static <T extends Throwable> T asIs(Throwable failure) throws T {
        throw (T) failure;
    }

    static List<Message> messages(JSONObject c) {
        List<Message> messages = new ArrayList<>();
        JSONArray list = c.getJSONArray("messages");
        for (int i = 0; i < list.size(); i++) {
            messages.add(message(c.getString("topic"), list.getJSONObject(i)));
        }
        return messages;
    }

    static Map<String, Object> sent(SendResult result) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("status", result.getSendStatus().name());
        map.put("msgId", result.getMsgId());
        map.put("offsetMsgId", result.getOffsetMsgId());
        map.put("broker", result.getMessageQueue().getBrokerName());
        map.put("queueId", result.getMessageQueue().getQueueId());
        map.put("queueOffset", result.getQueueOffset());
        try {
            map.put("recallHandle", result.getClass().getMethod("getRecallHandle").invoke(result));
        } catch (ReflectiveOperationException old) {
            map.put("recallHandle", null);
        }
        return map;
    }

    static Map<String, Object> received(MessageExt m) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("topic", m.getTopic());
        map.put("broker", m.getBrokerName());
        map.put("queueId", m.getQueueId());
        map.put("queueOffset", m.getQueueOffset());
        map.put("physicalOffset", m.getCommitLogOffset());
        map.put("msgId", m.getMsgId());
        map.put("flag", m.getFlag());
        map.put("sysFlag", m.getSysFlag());
        map.put("reconsumeTimes", m.getReconsumeTimes());
        map.put("bornMs", m.getBornTimestamp());
        map.put("storeMs", m.getStoreTimestamp());
        map.put("bornHost", host(m.getBornHost()));
        map.put("storeHost", host(m.getStoreHost()));
        map.put("storeSize", m.getStoreSize());
        map.put("bodyCrc", m.getBodyCRC());
        map.put("tags", m.getTags());
        map.put("keys", m.getKeys());
        map.put("properties", new LinkedHashMap<>(m.getProperties()));
        byte[] body = m.getBody() == null ? new byte[0] : m.getBody();
        map.put("bodyBytes", body.length);
        map.put("sha", sha256(body));
        if (body.length <= BODY_SHOWN_BYTES) {
            map.put("body64", Base64.getEncoder().encodeToString(body));
        }
        return map;
    }

    static List<Object> received(List<MessageExt> messages) {
        List<Object> list = new ArrayList<>();
        if (messages != null) {
            for (MessageExt m : messages) {
                list.add(received(m));
            }
        }
        return list;
    }

    static Map<String, Object> queue(MessageQueue queue) {
        Map<String, Object> map = new LinkedHashMap<>();
        map.put("topic", queue.getTopic());
        map.put("broker", queue.getBrokerName());
        map.put("queueId", queue.getQueueId());
        return map;
    }

    static MessageQueue queue(JSONObject c) {
        return new MessageQueue(c.getString("topic"), c.getString("broker"), c.getIntValue("queueId"));
    }

    private static String host(SocketAddress address) {
        InetSocketAddress at = (InetSocketAddress) address;
        return at.getAddress().getHostAddress() + ":" + at.getPort();
    }

    private static String sha256(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-256").digest(body)) {
                text.append(String.format("%02x", b));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException e) {
            throw new IllegalStateException(e);
        }
    }
}
