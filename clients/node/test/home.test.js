'use strict';
const assert = require('node:assert/strict');
const test = require('node:test');
const { homeOf } = require('../lib/home');

test('a public key that encrypts nothing is warned of once per process', () => {
  process.env.REDRIVE_PUBLIC_KEY = 'a-key';
  const said = [];
  const nowhere = 'redis://127.0.0.1:1/0';
  for (const source of ['shop', 'web']) homeOf({ source, store: nowhere, log: (sentence) => said.push(sentence) });
  assert.equal(said.filter((sentence) => sentence.startsWith('REDRIVE_PUBLIC_KEY has no effect')).length, 1);
});
