package dev.reclock.examples;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.Optional;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Any cluster of the fleet, through Reclock's front: no credentials of members needed. */
final class Front {
  static final String APPLY = "application/apply-patch+yaml";
  static final String CLUSTERS = "/apis/reclock.dev/v1alpha1/clusters";

  private final String url = System.getenv().getOrDefault("RECLOCK_FRONT", "https://127.0.0.1:6443");
  private final HttpClient client;

  Front() throws IOException, GeneralSecurityException {
    HttpClient.Builder builder = HttpClient.newBuilder().connectTimeout(Duration.ofSeconds(10));
    String path = System.getenv("RECLOCK_CA_FILE");
    if (path != null) {
      builder.sslContext(trusting(Path.of(path)));
    }
    client = builder.build();
  }

  private static SSLContext trusting(Path authority) throws IOException, GeneralSecurityException {
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    try (InputStream stream = Files.newInputStream(authority)) {
      store.setCertificateEntry("front", CertificateFactory.getInstance("X.509").generateCertificate(stream));
    }
    TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    trust.init(store);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(null, trust.getTrustManagers(), null);
    return context;
  }

  Optional<JsonObject> get(String cluster, String path) throws IOException, InterruptedException {
    return call(cluster, "GET", path, null, null);
  }

  /** One call to the API of a cluster ("" is the host). Empty for 404; other errors are thrown. */
  Optional<JsonObject> call(String cluster, String method, String path, JsonObject body, String type)
      throws IOException, InterruptedException {
    URI target = URI.create(url + (cluster.isEmpty() ? "" : "/clusters/" + cluster) + path);
    HttpRequest.Builder request = HttpRequest.newBuilder(target).timeout(Duration.ofSeconds(30));
    String token = System.getenv("RECLOCK_TOKEN_FILE");
    if (token != null) {
      request.header("Authorization", "Bearer " + Files.readString(Path.of(token)).strip());
    }
    if (body == null) {
      request.method(method, HttpRequest.BodyPublishers.noBody());
    } else {
      request.header("Content-Type", type).method(method, HttpRequest.BodyPublishers.ofString(body.toString()));
    }
    HttpResponse<String> answer = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
    if (answer.statusCode() == 404) {
      return Optional.empty();
    }
    if (answer.statusCode() >= 400) {
      throw new IOException(method + " " + path + ": " + answer.statusCode() + " " + answer.body());
    }
    return Optional.of(JsonParser.parseString(answer.body()).getAsJsonObject());
  }

  static String configMap(String namespace, String name) {
    return "/api/v1/namespaces/" + namespace + "/configmaps/" + name;
  }
}
