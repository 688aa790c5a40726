// A processor in a child process of BullMQ's: {"crash": true} ends that child as SIGKILL does.
module.exports = async (job) => {
  if (job.data.crash) process.kill(process.pid, 'SIGKILL');
  return 'well';
};
