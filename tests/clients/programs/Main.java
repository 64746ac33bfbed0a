// Submits, reads, cancels and works with the generated Java client.
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.JobsApi;
import org.openapitools.client.api.RemoteWorkersApi;
import org.openapitools.client.api.RunsApi;
import org.openapitools.client.model.*;

public class Main {
  public static void main(String[] arguments) throws Exception {
    String queue = "clients-java";
    ApiClient client = new ApiClient();
    client.updateBaseUri(arguments[0]);
    JobsApi jobs = new JobsApi(client);
    RunsApi runs = new RunsApi(client);
    RemoteWorkersApi workers = new RemoteWorkersApi(client);

    JobOut job =
        jobs.createJob(new JobIn().task("greet").queue(queue).timeout("30s").payload(Map.of("name", "Ada")), false);
    JobOut later = jobs.createJob(new JobIn().task("greet").queue(queue).delay("1h"), false);
    jobs.cancelJob(later.getJobId(), false);

    JobOut nightly =
        jobs.createJob(
            new JobIn()
                .name("nightly java")
                .task("greet")
                .queue(queue)
                .cronExpression("0 2 * * *")
                .catchUp(new CatchUpIn().mode(CatchUpIn.ModeEnum.ALL))
                .breaker(new BreakerIn().failures(3))
                .tags(List.of("kept"))
                .payload("kept"),
            false);
    jobs.changeJob(nightly.getJobId(), new JobPatch().priority(3));
    PageJobOut page =
        jobs.listJobs(null, null, null, null, queue, null, null, null, null, null, null, 10, null);

    RegisterOut worker = workers.register(new RegisterIn().name("worker in Java").queues(List.of(queue)));
    ClaimOut claimed = workers.claim(worker.getWorkerId(), new ClaimIn().waitSeconds(10.0));
    ClaimedRun run = claimed.getRuns().get(0);
    HeartbeatOut beat =
        workers.heartbeat(
            worker.getWorkerId(),
            new HeartbeatIn().held(List.of(run.getRunId())).claim(claimed.getClaim().intValue()));
    Object name = ((Map<?, ?>) run.getPayload()).get("name");
    ReportOut reported =
        workers.complete(run.getRunId(), new CompleteIn().fence(run.getFence()).result("Hello " + name));

    ObjectMapper json = new ObjectMapper();
    String problem = null;
    try {
      jobs.getJob("0".repeat(32));
    } catch (ApiException error) {
      problem = json.readValue(error.getResponseBody(), Problem.class).getTitle();
    }

    Map<String, Object> out = new LinkedHashMap<>();
    out.put("job", job.getJobId());
    out.put("cancelled", later.getJobId());
    out.put("recurring", nightly.getJobId());
    out.put("within", nightly.getBreaker().getWithin());
    out.put("mode", nightly.getCatchUp().getMode().getValue());
    out.put("listed", page.getItems().stream().map(JobOut::getJobId).collect(Collectors.toList()));
    out.put("fence", run.getFence());
    out.put("alive", beat.getAlive());
    out.put("answer", reported.getAnswer());
    out.put("problem", problem);
    out.put("status", jobs.getJob(job.getJobId()).getStatus());
    out.put("result", runs.getRun(run.getRunId()).getResult());
    System.out.println(json.writeValueAsString(out));
  }
}
