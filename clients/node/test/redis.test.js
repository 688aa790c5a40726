'use strict';
// The connection to a store, over real sockets: what is said to it, what comes back in whatever pieces, and what does not.
const assert = require('node:assert/strict');
const { once } = require('node:events');
const { mkdtempSync, rmSync } = require('node:fs');
const net = require('node:net');
const { tmpdir } = require('node:os');
const path = require('node:path');
const test = require('node:test');
const { CALL_MS, Said, Script, Store, Unanswered } = require('../lib/redis');

/** Something that listens: `answer` says what to send back for what was asked, nothing where it says nothing. */
async function listening(context, answer) {
  const heard = [];
  const server = net.createServer((socket) => {
    socket.on('error', () => {});
    socket.on('data', (bytes) => {
      for (const command of bytes.toString().split(/(?=\*\d+\r\n\$)/)) {
        heard.push(command.split('\r\n').filter((_, n) => n % 2 === 0 && n).join(' '));
        const said = heard.at(-1).startsWith('CLIENT') ? '+OK\r\n' : answer(heard.at(-1), socket);
        if (said) socket.write(said);
      }
    });
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const store = new Store(`redis://127.0.0.1:${server.address().port}`);
  context.after(() => (store.close(), server.close()));
  return { store, heard, server };
}

const refusing = async (promise, kind, words) => {
  const error = await promise.then(() => null, (found) => found);
  assert.ok(error instanceof kind, String(error));
  assert.match(error.message, words);
};

test('the URL of a store says where it is', () => {
  const usual = { host: '127.0.0.1', port: 6379, isTls: false, db: 0, username: '', password: '' };
  for (const [url, found] of [
    ['redis://', {}],
    ['redis://store.internal', { host: 'store.internal' }],
    ['redis://h:7000/3', { host: 'h', port: 7000, db: 3 }],
    ['valkey://h/', { host: 'h' }],
    ['rediss://h', { host: 'h', isTls: true }],
    ['valkeys://[::1]:7/2', { host: '::1', port: 7, db: 2, isTls: true }],
    ['redis://ann:p%40ss@h', { host: 'h', username: 'ann', password: 'p@ss' }],
    ['redis://a%40b:p@h', { host: 'h', username: 'a@b', password: 'p' }],
  ]) assert.deepEqual(new Store(url).where, { ...usual, ...found }, url);
  assert.deepEqual(new Store('unix:///run/store.sock?db=2').where, { path: '/run/store.sock', db: 2, username: '', password: '' });
  assert.deepEqual(new Store('redis+socket:///run/s').where, { path: '/run/s', db: 0, username: '', password: '' });
  for (const [url, words] of [['store', /not a URL/], ['http://h', /not a redis/], ['rediss+sentinel://:secret@a:1,b:2/shop/0', /^Error: its store is a set with Sentinels, [^@]+$/], ['redis://h/x', /not the number/], ['redis://h/1.5', /not the number/], ['unix:///s?db=x', /not the number/]]) {
    assert.throws(() => new Store(url), words);
  }
});

test('every kind of answer is read, whole or in the smallest pieces', async (context) => {
  const answers = [
    ['+OK\r\n', 'OK'], [':-5\r\n', -5], ['$3\r\na\r\n\r\n', 'a\r\n'], ['$0\r\n\r\n', ''], ['$-1\r\n', null], ['*-1\r\n', null], ['*0\r\n', []],
    ['$2\r\n\u00e9\r\n', '\u00e9'], ['*3\r\n:1\r\n*2\r\n$1\r\na\r\n$-1\r\n+b\r\n', [1, ['a', null], 'b']],
    ['*1\r\n'.repeat(9) + ':1\r\n', [[[[[[[[[1]]]]]]]]]],
  ];
  for (const isInPieces of [false, true]) {
    const { store } = await listening(context, (command, socket) => {
      const bytes = Buffer.from(answers[command.split(' ')[1]][0]);
      if (!isInPieces) return bytes;
      socket.setNoDelay(true);
      const send = (n) => n < bytes.length && socket.write(bytes.subarray(n, n + 1), () => setImmediate(send, n + 1));
      send(0);
    });
    for (const [n, [, found]] of answers.entries()) assert.deepEqual(await store.ask(['GIVE', n]), found);
  }
});

test('answers that come together go to those who asked, in the order in which they did; a refusal is one', async (context) => {
  const asked = [];
  const { store } = await listening(context, (command) => asked.push(command) === 3 && '+one\r\n-ERR two\r\n:3\r\n');
  const [one, two, three] = await Promise.allSettled([store.ask(['A']), store.ask(['B']), store.ask(['C'])]);
  assert.deepEqual([one.value, three.value], ['one', 3]);
  assert.ok(two.reason instanceof Said && two.reason.message === 'ERR two');
  assert.deepEqual(asked, ['A', 'B', 'C']);
});

test('texts and numbers are sent as they are', async (context) => {
  const { store, heard } = await listening(context, () => '+OK\r\n');
  await store.ask(['SET', 'caf\u00e9', 5, '']);
  assert.deepEqual(heard, ['CLIENT SETNAME redrive-node', 'SET caf\u00e9 5 ']);
});

test('what is no answer of a Redis, or too much of one, ends the connection', async (context) => {
  for (const [said, words] of [
    ['HTTP/1.1 400 Bad Request\r\n\r\n', /no Redis/], ['$99999999999\r\n', /too large/], ['*99999999\r\n', /too large/], ['$x\r\n', /too large/], ['*x\r\n', /too large/],
    ['*1\r\n'.repeat(10) + ':1\r\n', /too large/],
  ]) {
    const { store } = await listening(context, () => said);
    await refusing(store.ask(['GIVE']), Unanswered, words);
    assert.equal(store.isReady, false);
  }
  const { store } = await listening(context, (command) => (command === 'A' ? '+OK\r\n' : '+more'));
  await store.ask(['A']);
  store.rest = Buffer.alloc(64 * 1024 ** 2, '+'); // a line that does not end
  await refusing(store.ask(['GIVE']), Unanswered, /too large/);
});

test('a script is asked for by its name, by its text where it is not known, and any other refusal is one', async (context) => {
  let isKnown = false;
  const { store, heard } = await listening(context, (command) => {
    if (command.startsWith('EVALSHA')) return isKnown ? '-ERR wrong\r\n' : '-NOSCRIPT No matching script.\r\n';
    isKnown = true;
    return ':7\r\n';
  });
  const script = new Script('return 7');
  assert.equal(await store.run(script, ['k'], ['a', 1], 5000), 7);
  assert.deepEqual(heard.slice(1), [`EVALSHA ${script.sha} 1 k a 1`, 'EVAL return 7 1 k a 1']);
  assert.equal(script.sha, '59b6ab2fbe0ee4b25733de0f62e6cda4899ef8e9');
  await refusing(store.run(script, [], [], 5000), Said, /wrong/);
});

test('who does not answer in time is hung up on, for all that wait, and left alone for a while', async (context) => {
  const { store, heard } = await listening(context, () => null);
  const calm = store.ask(['CALM'], 60e3);
  const began = Date.now();
  await refusing(store.run(new Script('x'), [], []), Unanswered, /no answer in time/); // nobody told how long
  assert.ok(Date.now() - began >= CALL_MS - 5);
  await refusing(calm, Unanswered, /no answer in time/);
  await refusing(store.ask(['MORE']), Unanswered, /just before/);
  assert.equal(heard.filter((one) => one === 'MORE').length, 0);
});

test('the while grows with each time, to some seconds, and ends', async (context) => {
  const { store, heard } = await listening(context, () => '+OK\r\n');
  await store.ask(['A']);
  const pauses = Array.from({ length: 6 }, () => {
    store.hangUp('a test');
    return store.pauseMs;
  });
  assert.deepEqual(pauses, [1000, 2000, 4000, 5000, 5000, 5000]);
  const drawn = Array.from({ length: 200 }, () => (store.hangUp('a test'), store.closedUntil - Date.now()));
  assert.ok(drawn.every((ms) => ms > 2400 && ms <= 5000) && drawn.some((ms) => ms > 4400)); // a fleet does not come back together
  store.closedUntil = Date.now();
  await store.ask(['B']);
  assert.equal(store.pauseMs, 500); // it answers again
  assert.equal(heard.at(-1), 'B');
});

test('a connection that is lost is made anew; where nobody listens that is said; what was closed stays closed', async (context) => {
  let isRude = true;
  const { store, server } = await listening(context, (_, socket) => (isRude ? void socket.end('$9\r\nhalf') : '+OK\r\n'));
  await refusing(store.ask(['A']), Unanswered, /was closed/);
  assert.equal(store.pauseMs, 1000); // one loss is one
  isRude = false;
  store.closedUntil = 0;
  assert.equal(await store.ask(['B']), 'OK');
  store.hangUp('a test');
  store.closedUntil = 0;
  const isClosed = once(server, 'close');
  server.close();
  await isClosed;
  await refusing(store.ask(['C']), Unanswered, /no connection/);
  assert.equal(store.connecting, null);
  store.closedUntil = 0;
  store.close();
  await refusing(store.ask(['D']), Unanswered, /closed/);
});

test('many that ask at once make one connection, and who is refused at the door is told so', async (context) => {
  const { store, heard } = await listening(context, (command) => (command === 'A' ? '+OK\r\n+nobody asked\r\n' : '+OK\r\n'));
  await Promise.all(['A', 'B', 'C'].map((name) => store.ask([name])));
  assert.equal(heard.filter((one) => one.startsWith('CLIENT')).length, 1);
  const { store: other, heard: told } = await listening(context, (command) => (command.startsWith('AUTH') ? '-WRONGPASS no\r\n' : '+OK\r\n'));
  Object.assign(other.where, { username: 'ann', password: 'wrong', db: 4 });
  await refusing(other.ask(['A']), Said, /WRONGPASS/);
  assert.deepEqual(told, ['AUTH ann wrong', 'SELECT 4', 'CLIENT SETNAME redrive-node']);
  other.closedUntil = 0;
  Object.assign(other.where, { username: '', password: 'right' });
  await refusing(other.ask(['A']), Said, /WRONGPASS/);
  assert.equal(told[3], 'AUTH right');
});

test('last words are written where there is a connection, and nobody waits for an answer', async (context) => {
  const { store, heard } = await listening(context, (command) => (command === 'A' ? '+OK\r\n' : null));
  store.blurt(['EARLY']);
  await store.ask(['A']);
  store.blurt(['BYE', 1]);
  await refusing(store.ask(['WAIT'], 50), Unanswered, /in time/);
  assert.deepEqual(heard.slice(1), ['A', 'BYE 1', 'WAIT']);
});

test('a socket of the system is a way too, and whom a store lets say no name', async (context) => {
  const place = path.join(mkdtempSync(path.join(tmpdir(), 'redrive-')), 's');
  const server = net.createServer((socket) => socket.on('data', (bytes) => socket.write(`${bytes}`.includes('CLIENT') ? '-NOPERM\r\n' : ':1\r\n'))).listen(place);
  const store = new Store(`unix://${place}`);
  context.after(() => (store.close(), server.close(), rmSync(path.dirname(place), { recursive: true })));
  assert.equal(await store.ask(['A']), 1);
});

test('a connection keeps no process alive', async (context) => {
  const { store } = await listening(context, () => '+OK\r\n');
  await store.ask(['A']);
  assert.equal(store.socket.hasRef?.() ?? store.socket._handle.hasRef(), false);
});
