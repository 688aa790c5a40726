"""Reports of live workers about themselves: heartbeats, configurations, signatures of tasks, and the jobs that dead workers had fetched."""
