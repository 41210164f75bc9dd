package dev.reclock.examples;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.util.Optional;
import reclock.reconciler.v1.Reconciler.ForObject;
import reclock.reconciler.v1.Reconciler.Register;
import reclock.reconciler.v1.Reconciler.Request;
import reclock.reconciler.v1.Reconciler.Scope;
import reclock.reconciler.v1.Reconciler.Source;

/**
 * Copies ConfigMaps of the host that are labelled examples.reclock.dev/copy=true to every cluster, those that join later
 * included. A copy goes when its original goes or loses the label.
 */
final class ConfigMapCopier {
  private static final String LABEL = "examples.reclock.dev/copy";
  private static final String COPY = "examples.reclock.dev/copy-of-host";
  private static final String MANAGER = "?fieldManager=configmap-copier&force=true";

  private final Front front;

  private ConfigMapCopier(Front front) {
    this.front = front;
  }

  public static void main(String[] arguments) throws Exception {
    Source configMaps = source("configmap", "", "v1", "configmaps");
    Source clusters = source("cluster", "reclock.dev", "v1alpha1", "clusters");
    Register register = Register.newBuilder()
        .setController("configmap-copier-java").setMaxInFlight(10).setScope(Scope.SCOPE_HOST)
        .addSources(configMaps).addSources(clusters).build();
    Worker.run(register, new ConfigMapCopier(new Front())::reconcile);
  }

  private static Source source(String name, String group, String version, String resource) {
    return Source.newBuilder()
        .setName(name).setGroup(group).setVersion(version).setResource(resource).setScope(Scope.SCOPE_HOST)
        .setForObject(ForObject.getDefaultInstance()).build();
  }

  private void reconcile(Request request) throws IOException, InterruptedException {
    if (request.getSource().equals("cluster")) {
      fill(request.getName());
      return;
    }
    Optional<JsonObject> original = front.get("", Front.configMap(request.getNamespace(), request.getName()));
    boolean wanted = original.isPresent() && isLabelled(original.get(), LABEL);
    for (JsonElement item : front.get("", Front.CLUSTERS).orElseThrow().getAsJsonArray("items")) {
      String cluster = text(item.getAsJsonObject(), "name");
      if (wanted) {
        copy(original.get(), cluster);
      } else {
        remove(request.getNamespace(), request.getName(), cluster);
      }
    }
  }

  /** Gives a cluster all copies. */
  private void fill(String cluster) throws IOException, InterruptedException {
    if (front.get("", Front.CLUSTERS + "/" + cluster).isEmpty()) {
      return; // it has left
    }
    String selector = URLEncoder.encode(LABEL + "=true", StandardCharsets.UTF_8);
    JsonObject originals = front.get("", "/api/v1/configmaps?labelSelector=" + selector).orElseThrow();
    for (JsonElement item : originals.getAsJsonArray("items")) {
      copy(item.getAsJsonObject(), cluster);
    }
  }

  private void copy(JsonObject original, String cluster) throws IOException, InterruptedException {
    String name = text(original, "name");
    String namespace = text(original, "namespace");
    JsonObject labels = new JsonObject();
    labels.addProperty(COPY, "true");
    JsonObject made = object("ConfigMap", name);
    made.getAsJsonObject("metadata").addProperty("namespace", namespace);
    made.getAsJsonObject("metadata").add("labels", labels);
    made.add("data", original.has("data") ? original.get("data") : new JsonObject());
    String path = Front.configMap(namespace, name) + MANAGER;
    if (front.call(cluster, "PATCH", path, made, Front.APPLY).isEmpty()) {
      String space = "/api/v1/namespaces/" + namespace + MANAGER;
      front.call(cluster, "PATCH", space, object("Namespace", namespace), Front.APPLY);
      front.call(cluster, "PATCH", path, made, Front.APPLY).orElseThrow();
    }
    System.out.println("copied " + namespace + "/" + name + " to " + cluster);
  }

  /** Deletes the copy, if there is one: never a ConfigMap that is the cluster's own. */
  private void remove(String namespace, String name, String cluster) throws IOException, InterruptedException {
    String path = Front.configMap(namespace, name);
    Optional<JsonObject> found = front.get(cluster, path);
    if (found.isEmpty() || !isLabelled(found.get(), COPY)) {
      return;
    }
    JsonObject preconditions = new JsonObject();
    preconditions.addProperty("uid", text(found.get(), "uid"));
    JsonObject options = new JsonObject();
    options.add("preconditions", preconditions);
    front.call(cluster, "DELETE", path, options, "application/json");
    System.out.println("removed " + namespace + "/" + name + " from " + cluster);
  }

  private static JsonObject object(String kind, String name) {
    JsonObject metadata = new JsonObject();
    metadata.addProperty("name", name);
    JsonObject made = new JsonObject();
    made.addProperty("apiVersion", "v1");
    made.addProperty("kind", kind);
    made.add("metadata", metadata);
    return made;
  }

  private static String text(JsonObject object, String key) {
    return object.getAsJsonObject("metadata").get(key).getAsString();
  }

  private static boolean isLabelled(JsonObject object, String label) {
    JsonObject labels = object.getAsJsonObject("metadata").getAsJsonObject("labels");
    return labels != null && new JsonPrimitive("true").equals(labels.get(label));
  }
}
