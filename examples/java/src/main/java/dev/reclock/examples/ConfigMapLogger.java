package dev.reclock.examples;

import com.google.gson.JsonObject;
import java.util.TreeSet;
import reclock.reconciler.v1.Reconciler.ForObject;
import reclock.reconciler.v1.Reconciler.Register;
import reclock.reconciler.v1.Reconciler.Request;
import reclock.reconciler.v1.Reconciler.Source;

/** Prints a line for every ConfigMap of every cluster, now and after each change: {@code <cluster> <namespace>/<name> <keys>}. */
final class ConfigMapLogger {
  public static void main(String[] arguments) throws Exception {
    Front front = new Front();
    Source configMaps = Source.newBuilder()
        .setVersion("v1").setResource("configmaps").setForObject(ForObject.getDefaultInstance()).build();
    Register register = Register.newBuilder()
        .setController("configmap-logger-java").setMaxInFlight(10).addSources(configMaps).build();
    Worker.run(register, request -> System.out.println(line(front, request)));
  }

  private static String line(Front front, Request request) throws Exception {
    String keys = front.get(request.getCluster(), Front.configMap(request.getNamespace(), request.getName()))
        .map(ConfigMapLogger::keys).orElse("gone");
    return request.getCluster() + " " + request.getNamespace() + "/" + request.getName() + " " + keys;
  }

  private static String keys(JsonObject found) {
    JsonObject data = found.getAsJsonObject("data");
    return data == null || data.isEmpty() ? "-" : String.join(",", new TreeSet<>(data.keySet()));
  }
}
