"""Reports of live workers: heartbeats, configurations, signatures of tasks; and jobs that dead workers had fetched."""
