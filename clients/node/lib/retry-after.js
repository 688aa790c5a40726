'use strict';
// What a server asked for with `Retry-After`: seconds, or a date (RFC 9110, 10.2.3). Nothing here throws, whatever an error carries.

const NUMBER = /^[+-]?\d{1,400}(?:\.\d{0,400})?$/;
// The three forms of RFC 9110, 5.6.7, and those with another zone than its own. `Date.parse` alone finds a year in any sentence.
const DATE = /^(?:[a-z]{3,9},? )?(?:\d\d?[ -][a-z]{3}[ -](?:\d\d|\d{4})|[a-z]{3} [ \d]\d) \d\d:\d\d:\d\d(?: \d{4})?(?: (GMT|UTC|[+-]\d{4}))?$/i;
const LONGEST = 1000; // characters of a header that are looked at
const MOST_HEADERS = 1000; // that are looked at

/** So many seconds from `now` (ms since 1970); null where the wish cannot be read. What is past or negative is 0. */
function seconds(wish, now) {
  let found = null;
  if (typeof wish === 'number') found = wish;
  else if (wish instanceof Date) found = (wish.getTime() - now) / 1000;
  else if (typeof wish === 'string' && wish.length <= LONGEST) {
    const text = wish.trim();
    const date = DATE.exec(text);
    if (NUMBER.test(text)) found = Number(text);
    else if (date) found = (Date.parse(date[1] ? text : `${text} GMT`) - now) / 1000; // without a zone it is UTC, not that of this machine
    if (Number.isNaN(found)) return null; // no day of any month
  }
  return found === null ? null : found > 0 ? found : 0; // NaN is not above 0
}

// One after the other: what comes behind a wish is not looked at.
const PLACES = [
  (error) => error.retryAfter,
  (error) => error.retry_after,
  (error) => (typeof error.retryAfterMs === 'number' ? error.retryAfterMs / 1000 : undefined),
  (error) => header(error.response.headers),
  (error) => header(error.headers),
];

/** What an error carries, in seconds: `retryAfter` (seconds or a date), `retryAfterMs`, else the header of its response, or its own. */
function retryAfterS(error, now) {
  for (const place of PLACES) {
    let found;
    try {
      found = place(error);
    } catch {
      // It is not there, or somebody else's getter.
    }
    if (typeof found === 'number' || typeof found === 'string' || found instanceof Date) return seconds(found, now);
  }
  return null;
}

function header(headers) {
  if (typeof headers.get === 'function') return headers.get('retry-after'); // fetch, undici, axios
  let looked = 0;
  for (const name in headers) {
    if (name.toLowerCase() === 'retry-after') return Array.isArray(headers[name]) ? headers[name][0] : headers[name];
    if (++looked >= MOST_HEADERS) return null;
  }
  return null;
}

module.exports = { retryAfterS, seconds };
