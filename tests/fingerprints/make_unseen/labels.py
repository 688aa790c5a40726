"""The second set's pairs and their labels, written before anything was measured by somebody who had not read the algorithm."""

from __future__ import annotations

from collections.abc import Iterator

_SAME = """
    ssh-refused : nobody listens at the report server; a retry came in between releases
    ssh-banner : what answers there is no SSH server
    deliver-quota : the quota is used up, behind our own words and another file
    imap-folder : the folder that results are read from does not exist
    amqp-refused : the broker does not listen
    ws-lost : the feed of another ward ended with 1011
    grpc-down : the pharmacy does not listen; gRPC words it in another way after an upgrade
    grpc-missing : the pharmacy does not know the patient
    dynamo-busy : throughput is used up; Celery could not pickle one of them
    es-down : the search cluster does not listen; the client moved its exceptions to another package
    es-missing : the month's index was not made
    my-email : an e-mail address is taken
    my-blocked : MySQL blocked a host of ours
    leave-deadlock : a deadlock at discharge
    claim-iban : a claim without an IBAN; the message ends with the schema and the claim
    claim-amount : an amount as text; the message begins with it
    picture-what : an upload that is no picture
    roster-sheet : the month's sheet is not in the roster
    day-words : a day in words
    config-iban : a tenant's settings lack the IBAN
    grant : the calendar's token was revoked
    tls-name : the insurer's certificate is for another name
    shapes : readings and weights do not fit, by other sizes
    bill-text : an amount as text, in a worker of a pool
    reading-big : a device's number beyond 65535; Python 3.13 words it in another way
"""

_DIFFERENT = """
    ssh-auth o a | ssh-banner n b : bad password; no SSH server
    ftp-denied n a | ftp-quota n b : no permission; quota used up
    deliver-login o a | deliver-quota n b : our words are the same; login refused, quota used up
    ws-lost n a | ws-token n b : the feed broke; our token is no longer valid
    grpc-down n a | grpc-late n b : nobody listens; too late
    grpc-missing n a | grpc-denied n b : no such patient; we may not read
    dynamo-missing o a | dynamo-taken n b : no table; bed taken
    dynamo-busy o a | dynamo-taken o b : throughput used up; bed taken
    my-email n a | my-number n b : another unique key
    my-many n a | my-blocked n b : too many connections; host blocked
    leave-deadlock n a | leave-wait n b : deadlock; waited too long for a lock
    claim-iban n a | claim-email n b : another field is missing
    picture-what n a | picture-cut n b : no picture; cut short
    day-words n a | day-range n b : words; a day that does not exist
    config-iban o a | config-bic n b : another option is missing
    copay-text n a | copay-huge n b : an amount as text; an amount beyond the precision
    row-empty n a | row-currency n b : no amount; unknown currency
    no-payer n a | no-payee n b : the payer is missing; the payee is missing, two lines further
    jwt-no-sub n a | jwt-no-exp n b : another claim is missing
    signed-old n a | signed-forged n b : our words are the same; expired, forged
    note-key o a | letter-key n b : another function of the clinic
    grant n a | client n b : token revoked; unknown client
    tls-old n a | tls-name n b : certificate expired; for another name
    tls-name o a | tls-unknown n b : certificate for another name; not trusted
    shapes n a | columns n b : readings do not fit the weights; the last row does not fit
"""


def pairs() -> Iterator[tuple[str, str, bool, str]]:
    for line in _SAME.strip().splitlines():
        name, why = line.strip().split(" : ")
        yield f"{name} o a", f"{name} n b", True, why
    for line in _DIFFERENT.strip().splitlines():
        both, why = line.strip().split(" : ")
        left, right = both.split(" | ")
        yield left, right, False, why
