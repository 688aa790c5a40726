"""The 200 pairs and their labels. Left and right are observations: scenario, environment, set of values."""

from __future__ import annotations

from collections.abc import Iterator

# One cause, seen by old and new libraries, in other releases, with other ids. `m` where the old ones lack it.
_SAME = {
    "o a|n b": """
        refused timeout unresolved reset cancel-refused tls-to-plain status-503 status-404 rates-html rates-missing
        rates-loop rates-gzip persistent-503 persistent-refused no-scheme bad-scheme pool-refused track-refused
        track-timeout track-404 fetch-refused fetch-503 fetch-unresolved old-refused old-timeout knock-refused
        handshake ask-refused ask-timeout declined no-such-charge card-refused-connection
        sku-taken held-negative pg-sku-taken pg-sku-missing pg-held-negative pg-shelf pg-no-table pg-down
        no-column no-row orm-sku-taken bank-no-table bank-taken bank-down bank-locked bank-slow bank-bad-number
        book-number book-amount find-many find-bad check-amount letter-syntax no-url
        cache-refused cache-timeout cache-unresolved cache-password push-wrong-type cache-object publish-refused
        json-cut json-extra json-comma feed-html no-file utf8 no-zip no-member row-text csv-quote xml-open yaml
        s3-refused s3-no-key s3-busy s3-no-option mail-no-such mail-login mail-hang-up
        customer-email letter-undefined letter-tag day day-rest amount choose
        no-amount amount-none taxed-no-rate totalled misspelt gateway walk refuse-funds no-gateway sold-out
        unknown-customer gave-up basket wrapped card-text late gathered command-fails command-slow asserted
        ship nightly frame-no-column frame-date mongo-refused
    """,
    "m a|n b": "patient order-no-number many-values crowd noted settle-taken settle-down",
    "m b|n b": "order-text",
    "o b|m a": "timeout no-price-number printed json-quotes in-pool",
    "m b|n a": "limited publish-amqp-refused asserted-currency mail-away",
}

# Two causes: near misses that a person would tell apart.
_DIFFERENT = """
    refused o a | timeout n a : refused is not the same as too late
    refused o a | unresolved n b : nobody listens; no such name
    refused n a | reset n b : nobody listens; somebody hung up
    refused m a | tls-to-plain m a : refused; spoke another protocol
    unresolved o a | timeout o b : no such name; too late
    refused o a | cancel-refused n b : another function of the shop calls
    timeout m a | cancel-timeout n b : another function of the shop calls
    refused n a | persistent-refused n b : another function of the shop calls
    status-503 o a | status-500 n b : other status
    status-503 n a | status-404 n b : other status
    status-404 o a | status-429 m b : other status
    status-500 m a | status-404 o b : other status
    rates-html n a | rates-half n b : no JSON at all; JSON cut short
    rates-html o a | rates-missing o b : no JSON; JSON without the key
    rates-loop n a | rates-gzip n b : other protocol errors
    rates-short n a | rates-half n b : the connection broke; the partner sent half
    persistent-503 o a | persistent-500 n b : other status after retries
    persistent-503 n a | persistent-refused n b : bad status; nobody listens
    no-scheme m a | bad-scheme n b : no scheme; unknown scheme
    pool-refused o a | pool-timeout o b : refused; too late
    track-refused n a | track-timeout n b : refused; too late
    track-refused o a | track-unresolved n b : nobody listens; no such name
    track-404 n a | track-502 n b : other status
    track-404 o a | track-502 o b : other status
    track-502 m a | track-html m b : bad status; no JSON
    fetch-refused n a | fetch-unresolved n b : nobody listens; no such name
    fetch-refused o a | fetch-timeout o b : refused; too late
    fetch-503 n b | fetch-404 n b : other status
    fetch-404 o b | fetch-503 m b : other status
    fetch-503 n a | fetch-html n b : bad status; no JSON
    old-404 n b | old-500 o b : other status
    old-refused n a | old-timeout n b : refused; too late
    knock-refused o a | knock-timeout n b : refused; too late
    knock-refused n a | knock-unresolved n b : nobody listens; no such name
    knock-reset o a | knock-refused o b : hung up; refused
    handshake n a | handshake-reset n b : wrong protocol; hung up
    ask-refused o a | ask-timeout n b : the same words, another cause
    ask-refused n a | ask-unresolved n b : the same words, another cause
    ask-timeout m a | ask-unresolved o b : the same words, another cause
    declined n a | expired n b : declined; expired
    declined o a | too-fast o b : declined; too many requests
    bad-key n a | too-fast n b : bad key; too many requests
    bad-key m a | card-refused-connection m b : bad key; nobody listens
    sku-taken o a | ean-taken n b : other unique constraint
    sku-taken n a | sku-missing n b : taken; missing
    sku-missing m a | held-negative m b : missing; negative
    pg-sku-taken o a | pg-ean-taken n b : other unique constraint
    pg-sku-taken n a | pg-ean-taken n a : other unique constraint
    pg-sku-taken m a | pg-sku-missing m b : taken; missing
    pg-sku-long n a | pg-sku-missing n b : too long; missing
    pg-no-table n a | pg-no-table-2 n b : other table
    pg-no-table o a | pg-no-column o b : no table; no column
    pg-no-column m a | pg-no-column-2 n b : other column
    pg-down n a | pg-no-database n b : no server; no database
    no-table o a | no-table-2 n b : other table
    no-table n a | no-column n b : no table; no column
    bad-sql n a | no-table n b : bad statement; no table
    sku-taken n a | orm-sku-taken n b : another function of the shop
    bank-taken o a | bank-taken-id n b : other unique constraint
    bank-taken n a | bank-taken-id n b : other unique constraint
    bank-no-table o a | bank-no-function m b : no table; no function
    bank-syntax n a | bank-zero n b : bad statement; division by zero
    bank-bad-number m a | bank-syntax m b : bad value; bad statement
    bank-locked n a | bank-slow n b : waits for a lock; too slow
    settle-taken m a | settle-taken-ean n b : other unique constraint
    settle-taken n a | settle-no-table n b : taken; no table
    bank-taken n a | settle-taken n b : another function of the shop, with another library
    book-number o a | book-email n b : other unique constraint
    book-number n a | book-amount n b : taken; missing
    find-none n b | find-many n b : none; too many
    check-amount n a | check-number n b : other field
    list-no-field o a | list-no-field-2 n b : other field
    raw-no-table o a | raw-no-column n b : no table; no column
    no-template o a | no-template-2 n b : other template
    cache-refused o a | cache-timeout n b : refused; too late
    cache-refused n a | cache-unresolved n b : nobody listens; no such name
    cache-refused o a | forget-refused n b : another function of the shop
    cache-password n a | cache-wrong-password n b : no password; wrong password
    cache-object n a | cache-list n b : another type is given
    push-wrong-type o a | count-text n b : other operation in another function
    json-html n a | json-cut n b : no JSON at all; cut short
    json-cut o a | json-string n b : other error in the text
    json-extra n a | json-quotes n b : other error in the text
    json-html o a | json-none o b : no JSON; nothing at all
    json-date o a | json-bytes n b : another type cannot be written
    json-html n a | feed-html n b : another function of the shop
    no-file o a | is-folder n b : missing; a folder
    no-file n a | no-letter n b : another function of the shop
    no-command m a | shell-no-command n b : another function of the shop
    row-missing o a | row-missing-2 n b : another column
    row-missing n a | total-missing n b : the same column, another function
    letter-undefined o a | letter-undefined-2 n b : another name
    letter-tag n a | letter-end n b : unknown tag; missing end
    no-page o a | no-page-2 o b : another template
    s3-no-key o a | s3-no-bucket n b : no key; no bucket
    s3-denied n a | s3-busy n b : denied; busy
    s3-denied o a | s3-keep-denied n b : another operation
    s3-refused n a | s3-timeout n b : refused; too late
    mail-no-such o a | mail-full n b : no such address; mailbox full
    mail-no-such n a | remind-no-such n b : another function of the shop
    mail-login n a | mail-no-login n b : refused; not offered
    customer-email n a | customer-none n b : bad; missing
    customer-age n a | customer-email n b : other field
    order-no-number n b | order-no-amount n b : other field missing
    no-amount o a | refund-no-amount n b : the same key, another function
    no-customer o a | no-email n b : another key, the same place
    amount-none n a | order-none n b : the amount is nothing; the order is nothing
    named-none o a | named-text n b : nothing; text
    named-none n a | mailed-none n b : another attribute in another function
    taxed-no-rate o a | taxed-no-net n b : another key, the same place
    added-none o a | added-text n b : nothing; text
    first-few o a | first-many n b : too few; too many
    totalled n a | discounted n b : another method
    printed n a | posted n b : another method
    plugin o a | plugin-2 n b : another module
    refuse-funds o a | refuse-stolen n b : another reason in the text
    wrapped o a | wrapped-number n b : the same words, another missing key
    wrapped n a | wrapped-type n b : another function, another cause
    card-missing n a | card-none n b : the same words, another cause
    card-none o a | card-text n b : the same words, another cause
    handled o a | handled-empty n b : other error while handling
    command-fails n a | command-fails-2 n b : another exit status
    command-fails o a | command-killed n b : failed; killed
    many-values n a | many-types n b : other errors in the group
    nightly o a | weekly n b : another function of the shop
    frame-no-column o a | frame-no-column-2 n b : another column
    mongo-refused n a | mongo-unresolved n b : nobody listens; no such name
    mongo-refused o a | mongo-keep-refused n b : another function of the shop
    whole-none o a | whole-list n b : nothing; a list
"""


def pairs() -> Iterator[tuple[str, str, bool, str]]:
    """Left, right, whether they are one cause, and why."""
    for sides, names in _SAME.items():
        left, right = sides.split("|")
        for name in names.split():
            yield f"{name} {left}", f"{name} {right}", True, "the same break, seen again"
    for line in _DIFFERENT.strip().splitlines():
        pair, _, why = line.partition(" : ")
        left, right = (side.strip() for side in pair.split("|"))
        yield left, right, False, why.strip()
