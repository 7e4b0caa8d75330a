package compactor.pulsar;

import java.io.IOException;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.pulsar.broker.PulsarServerException;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.TopicEventsListener;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.naming.SystemTopicNames;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.compaction.Compactor;
import org.apache.pulsar.compaction.PulsarCompactionServiceFactory;
import org.apache.pulsar.compaction.TopicCompactionService;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The value of {@code compactionServiceFactoryClassName} in broker.conf: hands the compaction of the topics that match
 * {@code compactorTopics} to the service, and that of all other topics to Pulsar's own compactor.
 *
 * <p>The setting is the whole broker's, and the broker's own topics need Pulsar's compactor: so it is extended, and
 * system topics are never matched.
 */
public class CompactorServiceFactory extends PulsarCompactionServiceFactory implements TopicEventsListener {
    private static final Logger LOG = LoggerFactory.getLogger(CompactorServiceFactory.class);
    private final Map<String, RemoteTopicCompaction> loading = new ConcurrentHashMap<>();
    private final Map<String, CompletableFuture<Boolean>> created = new ConcurrentHashMap<>();
    private Settings settings;
    private ScheduledExecutorService timer;
    private CompactorClient client;
    private MirrorProgress mirror;
    private PageCache pages;

    @Override
    public CompletableFuture<Void> initialize(PulsarService pulsar) {
        settings = Settings.of(pulsar.getConfiguration().getProperties());
        timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "compactor-timer");
            thread.setDaemon(true);
            return thread;
        });
        client = new CompactorClient(settings, timer);
        mirror = new MirrorProgress(client, settings, pulsar.getConfiguration().getReplicatorPrefix());
        pages = new PageCache(settings.pageCacheBytes());
        LOG.info("topics {} are compacted by {}", settings.topics(), settings.urls());
        return super.initialize(pulsar).thenRun(() -> pulsar.getBrokerService().addTopicEventListener(this));
    }

    @Override
    public CompletableFuture<TopicCompactionService> newTopicCompactionService(String topic) {
        try {
            if (!isOptedIn(topic)) {
                return super.newTopicCompactionService(topic);
            }
            CompletableFuture<Boolean> isNew = created.remove(topic);
            RemoteTopicCompaction compaction = new RemoteTopicCompaction(
                    this, topic, isNew == null ? CompletableFuture.completedFuture(false) : isNew);
            loading.put(topic, compaction);
            return CompletableFuture.completedFuture(compaction);
        } catch (Throwable failure) {
            return CompletableFuture.failedFuture(failure);
        }
    }

    /** Returns whether the service compacts a topic. */
    boolean isOptedIn(String topic) {
        return settings.topics().matcher(topic).matches() && !SystemTopicNames.isSystemTopic(TopicName.get(topic));
    }

    @Override
    protected Compactor newCompactor() throws PulsarServerException {
        return new CountingCompactor(getPulsarService());
    }

    CountingCompactor counts() {
        try {
            return (CountingCompactor) getCompactor();
        } catch (PulsarServerException e) {
            throw new CompletionException(e);
        }
    }

    PulsarService pulsar() {
        return getPulsarService();
    }

    CompactorClient client() {
        return client;
    }

    MirrorProgress mirror() {
        return mirror;
    }

    PageCache pages() {
        return pages;
    }

    String cluster() {
        return settings.cluster();
    }

    void closed(String topic, RemoteTopicCompaction compaction) {
        loading.remove(topic, compaction);
        pages.drop(compaction);
    }

    /** Prepares topics that were loaded, and deletes those that were deleted. A broker's thread calls it. */
    @Override
    public void handleEvent(String topic, TopicEvent event, EventStage stage, Throwable failure) {
        if (event == TopicEvent.LOAD && stage == EventStage.BEFORE || event == TopicEvent.CREATE) {
            created.remove(topic);
        }
        if (event == TopicEvent.CREATE && stage == EventStage.BEFORE && isOptedIn(topic)) {
            created.put(topic, isMissing(topic));
        }
        if (stage != EventStage.SUCCESS || event != TopicEvent.LOAD && event != TopicEvent.DELETE) {
            return;
        }
        try {
            timer.execute(() -> handle(topic, event));
        } catch (RuntimeException e) {
            LOG.warn("[{}] {} was not handled, because the broker ends", topic, event);
        }
    }

    /**
     * Returns whether a topic does not exist yet. A broker says CREATE of each topic that it loads for a client, and
     * does so before it opens, or makes, the topic's metadata.
     */
    private CompletableFuture<Boolean> isMissing(String topic) {
        try {
            return getPulsarService().getLocalMetadataStore()
                    .get("/managed-ledgers/" + TopicName.get(topic).getPersistenceNamingEncoding())
                    .thenApply(Optional::isEmpty)
                    .exceptionally(failure -> false);
        } catch (RuntimeException e) {
            LOG.warn("[{}] the metadata could not be asked whether the topic exists", topic, e);
            return CompletableFuture.completedFuture(false);
        }
    }

    private void handle(String topic, TopicEvent event) {
        try {
            if (event == TopicEvent.LOAD) {
                loaded(topic);
            } else if (isOptedIn(topic)) {
                client.delete(topic).whenComplete((ignored, failure) -> {
                    if (failure == null) {
                        LOG.info("[{}] deleted in the service, too", topic);
                    } else {
                        LOG.error("[{}] was deleted here, and not in the service: delete it there with"
                                + " compactor-admin topics delete --force, before a topic of that name is made again",
                                topic, failure);
                    }
                });
            }
        } catch (RuntimeException e) {
            LOG.warn("[{}] {} was not handled", topic, event, e);
        }
    }

    private void loaded(String topic) {
        RemoteTopicCompaction compaction = loading.remove(topic);
        if (compaction != null) {
            compaction.prepare().exceptionally(failure -> {
                LOG.warn("[{}] the compaction horizon could not be compared with the service's: {}", topic,
                        CompactorClient.unwrapped(failure).getMessage());
                return null;
            });
        } else if (!isOptedIn(topic) && wasCompactedByService(topic)) {
            LOG.error("[{}] was compacted by the service, and compactorTopics in broker.conf does not match it any"
                    + " more: compacted readers miss the messages that are only in the service. Match it again, or"
                    + " export it from the service first", topic);
        }
    }

    private boolean wasCompactedByService(String topic) {
        Topic loaded = getPulsarService().getBrokerService().getTopicReference(topic).orElse(null);
        if (!(loaded instanceof PersistentTopic persistent)) {
            return false;
        }
        PersistentSubscription subscription = persistent.getSubscription(Compactor.COMPACTION_SUBSCRIPTION);
        CompactedView view = subscription == null ? null : CompactedView.of(subscription.getCursor().getProperties());
        return view != null && view.horizon() != null;
    }

    @Override
    public void close() throws Exception {
        timer.shutdownNow();
        try {
            client.close();
        } catch (IOException e) {
            LOG.warn("the connections to the service could not be closed", e);
        }
        super.close();
    }
}
