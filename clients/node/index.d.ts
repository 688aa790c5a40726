export interface Options {
  /** What the desk knows this queue system by: the name of its entry in sources.toml. */
  source: string;
  /** Redrive's own Redis, `redis://…` or `rediss://…`. Left out: REDRIVE_REDIS_URL, or the file in REDRIVE_REDIS_URL_FILE. */
  store?: string;
  /** The most that any policy may do here. Left out: REDRIVE_MODE, else `enforce`. */
  mode?: 'off' | 'capture' | 'observe' | 'enforce';
  /** The release of your code. Left out: REDRIVE_RELEASE. */
  release?: string;
  /** The name of this process on the desk. Left out: host:pid. */
  name?: string;
  /** Where the piece says what it has to say, a sentence at a time. Left out: console.warn. */
  log?: (sentence: string) => void;
}

/** The same worker, whose jobs are retried as Redrive's policies say from now on. Never throws. */
export function worker<W>(worker: W, options: Options): W;

/** For `settings.backoffStrategy` of a Worker that must not be touched otherwise: asked only for jobs whose backoff has a type of your own. */
export function backoffStrategy(
  options: Options,
  /** Where no policy decides; left out: the job's own `backoff.delay`. */
  otherwise?: (attemptsMade: number, type?: string, error?: Error, job?: any) => number | Promise<number>,
): (attemptsMade: number, type?: string, error?: Error, job?: any) => Promise<number>;
