import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** Judges messages as a stock broker does: lines of base64 fields (expression, name, value, name, value ...), tabs between. */
public class Filters {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            Map<String, String> properties = new HashMap<>();
            for (int at = 1; at + 1 < parts.length; at += 2) {
                properties.put(text(parts[at]), text(parts[at + 1]));
            }
            out.println("verdict " + verdict(text(parts[0]), properties));
        }
        out.flush();
    }

    private static String verdict(String expression, Map<String, String> properties) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(expression);
        } catch (Exception problem) {
            return "refused";
        }
        try {
            return String.valueOf(compiled.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable problem) {
            return "failed";
        }
    }

    private static String text(String field) {
        return new String(Base64.getDecoder().decode(field), StandardCharsets.UTF_8);
    }
}
