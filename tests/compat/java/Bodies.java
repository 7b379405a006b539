import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** Reads bodies as a stock server reads them: lines of class name, tab, base64; answers with what the objects hold. */
public class Bodies {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                Object body = RemotingSerializable.decode(Base64.getDecoder().decode(parts[1]), Class.forName(parts[0]));
                answer.put("ok", plain(body));
            } catch (Throwable problem) {
                answer.put("refused", problem.toString());
            }
            out.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue,
                SerializerFeature.DisableCircularReferenceDetect));
        }
        out.flush();
    }

    static Object plain(Object value) throws Exception {
        if (value == null || value instanceof String || value instanceof Boolean || value instanceof Number) {
            return value instanceof java.util.concurrent.atomic.AtomicLong ? ((Number) value).longValue() : value;
        }
        if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        }
        if (value instanceof Collection) {
            List<Object> list = new ArrayList<>();
            for (Object one : (Collection<?>) value) {
                list.add(plain(one));
            }
            return list;
        }
        Map<String, Object> found = new LinkedHashMap<>();
        if (value instanceof Map) {
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                Object key = entry.getKey();
                found.put(key == null ? "null" : key.toString(), plain(entry.getValue()));
            }
            return found;
        }
        for (Class<?> kind = value.getClass(); kind != Object.class; kind = kind.getSuperclass()) {
            for (Field field : kind.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    field.setAccessible(true);
                    found.put(field.getName(), plain(field.get(value)));
                }
            }
        }
        return found;
    }
}
