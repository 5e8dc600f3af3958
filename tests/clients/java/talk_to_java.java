// What LangChain4j and Spring AI send with the JDK's own client, as it is by default: it offers
// HTTP/2 ("Upgrade: h2c") with every request over http. Its arguments are the URL and a recording.

import java.io.ByteArrayOutputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Stream;

class TalkToJava {
    static final String ANSWER = "Antiphon serves speech models as small services.";
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static String base;
    static String model;

    public static void main(String[] arguments) throws Exception {
        base = arguments[0] + "/v1/";
        model = firstModel();
        for (int round = 0; round < 2; round++) {
            chat();
            streamedChat();
            transcription(Path.of(arguments[1]));
        }
        manyAtOnce();
    }

    static String firstModel() throws Exception {
        String listed = ask(request("models").GET());
        return listed.replaceFirst("(?s).*?\"id\":\"([^\"]+)\".*", "$1");
    }

    static void chat() throws Exception {
        String answer = ask(chatRequest(false));
        check(answer.contains(ANSWER), answer);
    }

    static void streamedChat() throws Exception {
        HttpResponse<Stream<String>> response =
            CLIENT.send(chatRequest(true).build(), BodyHandlers.ofLines());
        check(response.statusCode() == 200, "status " + response.statusCode());
        List<String> data = new ArrayList<>();
        response.body().filter(line -> line.startsWith("data: ")).forEach(data::add);
        check(data.size() > 2, data.toString());
        check(data.get(data.size() - 1).equals("data: [DONE]"), data.toString());
    }

    static void transcription(Path recording) throws Exception {
        String boundary = "----LangChain4j" + System.nanoTime();
        ByteArrayOutputStream form = new ByteArrayOutputStream();
        form.write(part(boundary, "name=\"model\"", "", model));
        form.write(part(boundary, "name=\"response_format\"", "", "json"));
        String file = "name=\"file\"; filename=\"said.wav\"";
        form.write(part(boundary, file, "Content-Type: audio/wav\r\n", ""));
        form.write(Files.readAllBytes(recording));
        form.write(("\r\n--" + boundary + "--\r\n").getBytes(StandardCharsets.UTF_8));
        String answer = ask(
            request("audio/transcriptions")
                .header("Content-Type", "multipart/form-data; boundary=" + boundary)
                .POST(BodyPublishers.ofByteArray(form.toByteArray())));
        check(answer.contains("\"text\":"), answer);
    }

    static byte[] part(String boundary, String name, String headers, String value) {
        String head = "--" + boundary + "\r\nContent-Disposition: form-data; " + name + "\r\n";
        String end = value.isEmpty() ? "" : value + "\r\n";
        return (head + headers + "\r\n" + end).getBytes(StandardCharsets.UTF_8);
    }

    static void manyAtOnce() {
        List<CompletableFuture<HttpResponse<String>>> sent = new ArrayList<>();
        for (int at = 0; at < 8; at++) {
            sent.add(CLIENT.sendAsync(chatRequest(false).build(), BodyHandlers.ofString()));
        }
        for (CompletableFuture<HttpResponse<String>> each : sent) {
            check(each.join().body().contains(ANSWER), each.join().body());
        }
    }

    static HttpRequest.Builder chatRequest(boolean stream) {
        String body = "{\"model\": \"" + model + "\", \"stream\": " + stream
            + ", \"messages\": [{\"role\": \"user\", \"content\": \"What is antiphon?\"}]}";
        return request("chat/completions")
            .header("Content-Type", "application/json")
            .POST(BodyPublishers.ofString(body));
    }

    static HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create(base + path))
            .header("Authorization", "Bearer none")
            .timeout(Duration.ofSeconds(120));
    }

    static String ask(HttpRequest.Builder request) throws Exception {
        HttpResponse<String> response = CLIENT.send(request.build(), BodyHandlers.ofString());
        check(response.statusCode() == 200, response.statusCode() + ": " + response.body());
        return response.body();
    }

    static void check(boolean right, String otherwise) {
        if (!right) {
            throw new AssertionError(otherwise);
        }
    }
}
