// Decision 0003 of the TVL platform (seed 004), as it stands, block by block. Filled in, because it leaves them out: the names that the next
// line brings (connection, dead-letter queue, logger, what the jobs do), `export`, and the data of the one job that it adds.
import { dlqQueue, isRateLimitError, isValidationError, logger, redisConnection, syncAvailability, syncPricing, data } from './filled-in';
import { Queue, Worker } from 'bullmq';
const syncQueue = new Queue('sync', {
  connection: redisConnection,
  defaultJobOptions: {
    attempts: 5,
    backoff: {
      type: 'exponential',
      delay: 1000 // 1s, 2s, 4s, 8s, 16s
    },
    removeOnComplete: 100, // Keep last 100 completed
    removeOnFail: 1000      // Keep last 1000 failed
  }
});

// Priority levels (1 = highest)
enum JobPriority {
  CRITICAL = 1,  // Payment capture, booking confirmation
  HIGH = 3,      // Availability sync, price updates
  MEDIUM = 5,    // Listing sync, notifications
  LOW = 10       // Report generation, analytics
}

// Worker implementation
const worker = new Worker('sync', async (job) => {
  const { unitId, syncType } = job.data;
  try {
    if (syncType === 'availability') {
      await syncAvailability(unitId);
    } else if (syncType === 'pricing') {
      await syncPricing(unitId);
    }
    return { success: true, syncedAt: new Date() };
  } catch (error) {
    // Classify error
    if (isRateLimitError(error)) {
      // Transient: retry
      throw error;
    } else if (isValidationError(error)) {
      // Permanent: don't retry, move to DLQ
      throw new Error(`Permanent failure: ${error.message}`);
    } else {
      // Unknown: retry
      throw error;
    }
  }
}, {
  connection: redisConnection,
  concurrency: 5, // Process 5 jobs in parallel
  limiter: {
    max: 100,     // Max 100 jobs
    duration: 60000 // Per 60 seconds
  }
});

worker.on('failed', async (job, error) => {
  if (job.attemptsMade >= job.opts.attempts) {
    // Move to DLQ
    await dlqQueue.add('failed-job', {
      originalJob: job.asJSON(),
      error: error.message,
      failedAt: new Date()
    }, {
      priority: 1 // Low priority for manual review
    });
    // Alert ops team
    logger.error('Job moved to DLQ', {
      jobId: job.id,
      jobName: job.name,
      attempts: job.attemptsMade,
      error: error.message
    });
  }
});

export { syncQueue, worker, JobPriority };

export async function addOne() {
await syncQueue.add('sync-availability', data, {
  priority: JobPriority.HIGH
});
}
