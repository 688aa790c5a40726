'use strict';
// One connection to Redrive's store. Nobody waits longer than CALL_MS for an answer while a job does, and a store that did not answer is
// left alone for a while. Of its own, so that no version of a client library is asked for; RESP2, as every Redis since 6.2 speaks it.
const { createHash } = require('node:crypto');
const net = require('node:net');
const tls = require('node:tls');

const CALL_MS = 100; // while a job waits
const CALM_MS = 2000; // what nobody waits for
const CONNECT_MS = 2000;
const FIRST_PAUSE_MS = 500, LONGEST_PAUSE_MS = 5000;
const MOST_BYTES = 64 * 1024 ** 2; // of one answer
const CRLF = Buffer.from('\r\n');

class Unanswered extends Error {}
class Said extends Error {} // an error that the server told

class Script {
  constructor(text) {
    this.text = text;
    this.sha = createHash('sha1').update(text).digest('hex');
  }
}

class Store {
  /** Connects when first asked. Throws where the URL cannot be used; its text never holds the password. */
  constructor(url) {
    this.where = address(url);
    this.socket = null;
    this.isReady = false;
    this.waiting = []; // of those that were asked, in order: {resolve, reject}
    this.rest = Buffer.alloc(0);
    this.pauseMs = FIRST_PAUSE_MS;
    this.closedUntil = 0;
    this.connecting = null;
    this.isOver = false;
  }

  /** The answer; throws Unanswered where nobody answered in time: it may have been done all the same. Said, where it was refused. */
  async ask(args, ms = CALM_MS) {
    const ends = Date.now() + ms;
    if (!this.isReady) await within(this.connect(), ends);
    return within(this.send(args), ends, () => this.hangUp('no answer in time'));
  }

  /** The answer of a script, by its name, and by its text where the server does not know it. */
  async run(script, keys, args, ms = CALL_MS) {
    const ends = Date.now() + ms;
    try {
      return await this.ask(['EVALSHA', script.sha, keys.length, ...keys, ...args], ms);
    } catch (error) {
      if (!error.message.startsWith('NOSCRIPT')) throw error;
      return this.ask(['EVAL', script.text, keys.length, ...keys, ...args], Math.max(1, ends - Date.now()));
    }
  }

  /** Last words: handed to the system before this returns, and nobody waits for an answer. */
  blurt(args) {
    if (this.isReady) this.socket.write(command(args));
  }

  connect() {
    if (this.isOver) return Promise.reject(new Unanswered('closed'));
    if (this.connecting) return this.connecting;
    if (Date.now() < this.closedUntil) return Promise.reject(new Unanswered('the store did not answer just before'));
    this.connecting = this.dial().finally(() => (this.connecting = null));
    return this.connecting;
  }

  async dial() {
    const { host, port, path, isTls, username, password, db } = this.where;
    const to = path ? { path } : { host, port };
    const socket = isTls ? tls.connect({ ...to, servername: net.isIP(host) ? undefined : host }) : net.connect(to);
    this.socket = socket;
    this.rest = Buffer.alloc(0);
    socket.unref(); // it keeps no process alive
    socket.setNoDelay(true);
    socket.on('error', () => {}); // `close` follows
    socket.on('data', (piece) => this.socket === socket && this.hear(piece));
    socket.on('close', () => this.socket === socket && this.hangUp('the connection was closed'));
    try {
      await within(new Promise((resolve, reject) => {
        socket.once(isTls ? 'secureConnect' : 'connect', resolve);
        socket.once('close', () => reject(new Unanswered('no connection')));
      }), Date.now() + CONNECT_MS);
      const hello = [];
      if (password) hello.push(this.send(username ? ['AUTH', username, password] : ['AUTH', password]));
      if (db) hello.push(this.send(['SELECT', db]));
      hello.push(this.send(['CLIENT', 'SETNAME', 'redrive-node']).catch(() => {}));
      await within(Promise.all(hello), Date.now() + CONNECT_MS);
    } catch (error) {
      if (this.socket === socket) this.hangUp(error.message);
      throw error;
    }
    this.isReady = true;
    this.pauseMs = FIRST_PAUSE_MS;
  }

  send(args) {
    const socket = this.socket;
    if (!socket || socket.destroyed) return Promise.reject(new Unanswered('no connection'));
    return new Promise((resolve, reject) => {
      this.waiting.push({ resolve, reject });
      socket.write(command(args));
    });
  }

  hear(piece) {
    this.rest = this.rest.length ? Buffer.concat([this.rest, piece]) : piece;
    try {
      let at = 0;
      for (let found = read(this.rest, at); found; found = read(this.rest, at)) {
        at = found.at;
        const one = this.waiting.shift();
        if (one) found.value instanceof Said ? one.reject(found.value) : one.resolve(found.value);
      }
      if (at) this.rest = this.rest.subarray(at);
      if (this.rest.length > MOST_BYTES) throw new Unanswered('its answer is too large');
    } catch (error) {
      this.hangUp(error.message);
    }
  }

  hangUp(why) {
    const socket = this.socket, waiting = this.waiting;
    this.socket = null;
    this.isReady = false;
    this.waiting = [];
    // Drawn anew, so that a fleet that lost the store together does not come back together.
    this.closedUntil = Date.now() + this.pauseMs * (0.5 + Math.random() / 2);
    this.pauseMs = Math.min(LONGEST_PAUSE_MS, this.pauseMs * 2);
    socket?.destroy();
    for (const one of waiting) one.reject(new Unanswered(why));
  }

  close() {
    this.isOver = true;
    this.hangUp('closed');
  }
}

function address(url) {
  let found;
  if (/^\w*\+?sentinels?:/.test(url)) throw new Error('its store is a set with Sentinels, which this agent cannot use: name one Redis');
  try {
    found = new URL(url);
  } catch {
    throw new Error('its store is not a URL such as redis://host:6379/1');
  }
  const { protocol, hostname, port, pathname } = found;
  const credentials = { username: decodeURIComponent(found.username), password: decodeURIComponent(found.password) };
  const isSocket = protocol === 'unix:' || protocol === 'redis+socket:';
  const db = Number(isSocket ? found.searchParams.get('db') : pathname.slice(1));
  if (!Number.isInteger(db)) throw new Error('what its store has for a database is not the number of one');
  if (isSocket) return { path: pathname, db, ...credentials };
  if (!['redis:', 'rediss:', 'valkey:', 'valkeys:'].includes(protocol)) throw new Error('its store is not a redis:// or rediss:// URL');
  const host = hostname.replace(/^\[|\]$/g, '') || '127.0.0.1';
  return { host, port: Number(port) || 6379, isTls: protocol === 'rediss:' || protocol === 'valkeys:', db, ...credentials };
}

function command(args) {
  const parts = [Buffer.from(`*${args.length}\r\n`)];
  for (const arg of args) {
    const bytes = Buffer.from(String(arg));
    parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, CRLF);
  }
  return Buffer.concat(parts);
}

/** One answer from `at` on, and where the next begins; null where it is not whole yet. Throws for what no Redis says. */
function read(buffer, at, depth = 0) {
  const end = buffer.indexOf(CRLF, at);
  if (end < 0) return null;
  const line = buffer.toString('utf8', at + 1, end);
  const next = end + 2;
  switch (String.fromCharCode(buffer[at])) {
    case '+':
      return { value: line, at: next };
    case '-':
      return { value: new Said(line), at: next };
    case ':':
      return { value: Number(line), at: next };
    case '$': {
      const size = Number(line);
      if (size < 0) return { value: null, at: next };
      if (!(size <= MOST_BYTES)) throw new Unanswered('its answer is too large');
      if (buffer.length < next + size + 2) return null;
      return { value: buffer.toString('utf8', next, next + size), at: next + size + 2 };
    }
    case '*': {
      const count = Number(line);
      if (count < 0) return { value: null, at: next };
      if (depth > 8 || !(count <= 1e6)) throw new Unanswered('its answer is too large');
      const value = [];
      let from = next;
      for (let i = 0; i < count; i++) {
        const found = read(buffer, from, depth + 1);
        if (!found) return null;
        value.push(found.value);
        from = found.at;
      }
      return { value, at: from };
    }
    default:
      throw new Unanswered('what answers there is no Redis');
  }
}

/** The promise, or Unanswered at the moment `ends`; `onLate` is called then. */
function within(promise, ends, onLate) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => {
      reject(new Unanswered('no answer in time'));
      onLate?.();
    }, Math.max(0, ends - Date.now()));
    timer.unref?.();
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

module.exports = { CALL_MS, Said, Script, Store, Unanswered, within };
