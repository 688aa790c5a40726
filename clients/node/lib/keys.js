'use strict';
// Names in Redis, as in jobs_admin/core/keys.py; a test holds the two together.
const { createHash } = require('node:crypto');

const PLAIN = /^[A-Za-z0-9_-]{1,64}(?:#\d{1,10})?$/;
const SOURCE = /^[a-z0-9][a-z0-9_-]{0,62}$/;

// As it is where it is short and plain, else a digest: what a job says must not shape a key.
const told = (text) => (PLAIN.test(text) ? text : 'x' + createHash('sha256').update(text).digest('hex').slice(0, 32));

module.exports = {
  isSource: (name) => typeof name === 'string' && SOURCE.test(name),
  switch: 'redrive:switch',
  workers: (source) => `redrive:{${source}}:workers`,
  policies: 'redrive:policies',
  policiesVersion: 'redrive:policies:version',
  budget: (source) => `redrive:{${source}}:budget`,
  crash: (source, job) => `redrive:{${source}}:crash:job:${told(job)}`,
  boots: (source) => `redrive:{${source}}:crash:boots`,
  boot: (source, boot) => `redrive:{${source}}:crash:boot:${boot}`,
  leases: (source, policy, value) => `redrive:{${source}}:limits:leases:${policy}:${told(value)}`,
  starts: (source, policy) => `redrive:{${source}}:limits:starts:${policy}`,
  // In BullMQ's own Redis: jobs that failed for good and that BullMQ may forget.
  kept: (source) => `redrive:{${source}}:bullmq:kept`,
};
