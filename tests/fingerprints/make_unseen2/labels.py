"""The third set's pairs and labels, written before anything was measured by somebody who had not read the algorithm.

A pair: name, one cause?, why, what is called, and the two sides: (environment + release + way, values). `o`: Python 3.11, `m`: 3.12 with
the libraries' next patch or minor versions, `n`: 3.13 with today's; `A`, `B`: a release; `c`: as a task of Celery, `p`: a plain call."""

GLS, DPD, RATES, S3 = (f"http://{h}.example" for h in ("api.gls", "api.dpd", "rates.fx", "s3.eu"))
NO_KEY = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message><RequestId>{}</RequestId></Error>'
ANSWERS = [
    ("api.gls", "/shipments/G-77-1881", 503, {}, 0), ("api.dpd", "/shipments/05309921", 503, {}, 0),
    ("api.gls", "/shipments/G-10-401", 401, {}, 0), ("api.gls", "/shipments/G-11-404", 404, {}, 0),
    ("api.gls", "/v2/labels", 400, {}, 0), ("api.gls", "/cancel", 400, {}, 0),
    ("rates.fx", "/rates/CHF", 200, {}, 1), ("rates2.fx", "/rates/PLN", 200, {}, 1),
    ("rates.fx", "/rates/SEK", 429, {}, 0), ("rates.fx", "/rates/NOK", 500, {}, 0),
    ("api.gls", "/bookings", 422, {"detail": "recipient has no house number"}, 0),
    ("api.dpd", "/bookings", 422, {"detail": "recipient has no house number"}, 0),
    ("api.ups", "/bookings", 422, {"detail": "customs value is missing"}, 0),
    ("wms.north", "/stock?page=1", 200, {"rows": [{"sku": "A", "quantity": 3}]}, 0), ("wms.north", "/stock?page=2", 200, {}, 1),
    ("shop.acme", "/orders/7", 502, {}, 0), ("shop.beta", "/orders/", 502, {}, 0), ("shop.acme", "/orders/8", 200, {"sum": 4}, 0),
    ("quotes.sea", "/quotes/HAM-OSL", 500, {}, 0),
    ("s3.", "/invoices/2026/10", 404, NO_KEY.format("NoSuchKey", "The specified key does not exist.", "4442587FB7D0A2F9"), 0),
    ("s3.", "/docs/acme/a1", 404, NO_KEY.format("NoSuchKey", "The specified key does not exist.", "9F00A7D2118BC3E1"), 0),
    ("s3.", "/labels/denied", 403, NO_KEY.format("AccessDenied", "Access Denied", "AA02BC7712"), 0),
    ("s3.", "/labels/slow", 503, NO_KEY.format("SlowDown", "Please reduce your request rate.", "77AF2210BB"), 0),
]
MAIL = {"unknown": "550 5.1.1 <{to}>: Recipient address rejected: User unknown in virtual mailbox table",
    "relay": "454 4.7.1 <{to}>: Relay access denied"}

ONE = {"id": 900, "tenant": "Nordlicht GmbH", "number": "2026-0419", "reference": "R-900", "customer_email": "a@x.example", "amount": 12}
LATE = {"number": "O-1", "late": True, "total": 3.5, "shop": {"city": "Kiel"}}
GOOD = {"name": "A", "email": "a@b.example", "vat_id": "DE1"}
ORDER = {"id": 1, "customer": "x", "due_date": "2026-11-30", "amount": 3.5}


def pairs():
    pg = "@pg"
    yield ("carrier-503", True, "carriers answer 503; another carrier, shipment and tenant", "carrier.track",
        ("oAc", dict(base=GLS, shipment="G-77-1881", tenant="nordlicht")), ("mBc", dict(base=DPD, shipment="05309921", tenant="t-4471")))
    yield ("rates-slow", True, "the service for rates does not answer in time; another of its hosts and currency", "carrier.exchange_rate",
        ("oAc", dict(base=RATES, currency="CHF")), ("nBp", dict(base="http://rates2.fx.example", currency="PLN")))
    yield ("hook-refused", True, "a customer's hook does not listen", "carrier.push_status",
        ("oAc", dict(url="http://down.acme.example:8443/hooks/orders", order=77120)), ("mBc", dict(url="http://down-hooks.beta.example/redrive/v1", order="B-2026-9")))
    yield ("booking-house-number", True, "our booking sends no house number; another carrier, shipment and tenant in our own words", "carrier.book",
        ("oAc", dict(base=GLS, carrier="GLS", shipment="G-500123", tenant="nordlicht")), ("oBc", dict(base=DPD, carrier="DPD Express", shipment="0530-77", tenant="Blumen Meier")))
    yield ("number-taken", True, "the same unique constraint, another tenant and number", "ledger.save_invoice",
        ("oAc", dict(dsn=pg, invoice=ONE)), ("mBp", dict(dsn=pg, invoice={**ONE, "id": 901, "tenant": "t-22", "number": "A/88", "reference": "R-1"})))
    yield ("db-down", True, "the database does not listen; another host and database", "ledger.totals",
        ("oAc", dict(url="postgresql+psycopg://app@127.0.0.3:@closed/fulfil", tenant="nordlicht")), ("mBc", dict(url="postgresql+psycopg://app@127.0.0.9:@closed/fulfil_eu", tenant="acme")))
    yield ("deadlock", True, "the same two updates in the wrong order; other processes, transactions and tuples", "ledger.transfer",
        ("oAc", dict(dsn=pg, first=1, second=2)), ("oBc", dict(dsn=pg, first=3, second=4)))
    yield ("line-without-invoice", True, "lines come before their invoice; other parameters, several rows instead of one, newer libraries", "ledger.add_lines",
        ("oAc", dict(url="@sa", lines=[{"invoice_id": 5001, "sku": "A-1", "qty": 2}])),
        ("nBp", dict(url="@sa", lines=[{"invoice_id": 70991, "sku": "Z 9", "qty": 1}, {"invoice_id": 70992, "sku": "Y", "qty": 4}])))
    yield ("cache-down", True, "the cache does not listen; another host and port", "ledger.remember",
        ("oAc", dict(host="down-cache-1.fulfil.example", port=6379, key="k", value="1")), ("mBc", dict(host="down-redis.eu.example", port=6390, key="q:9", value="z")))
    yield ("archive-down", True, "the archive does not listen; other hosts, two instead of one", "ledger.archive",
        ("oAc", dict(url="mongodb://127.0.0.1:@closed/", document={"n": 1})), ("mBc", dict(url="mongodb://127.0.0.4:@closed,127.0.0.5:@closed/", document={"n": 2})))
    yield ("feed-cut", True, "the partner's feed arrives cut, elsewhere each time", "feeds.parse_order_feed",
        ("oAc", dict(text='[{"id": 1, "n": "abc"}, {"id": 2')), ("mBc", dict(text='[\n{"id": 71},\n{"id": 72},\n{"id": 73, "shop": "x"}\n')))
    yield ("decimal-comma", True, "a partner writes amounts with a comma; callers refactored", "feeds.import_prices",
        ("oAc", dict(rows=[{"sku": "a", "amount": "1.234,50", "weight": "2"}])), ("oBc", dict(rows=[{"sku": "b", "amount": "99,00", "weight": "1"}])))
    yield ("attachment-gone", True, "the attachment was cleaned away before it was sent", "feeds.attach",
        ("oAc", dict(path="/var/lib/fulfil/tenants/nordlicht/2026-10/INV-2026-0419.pdf")), ("mBp", dict(path="/mnt/share-2/tenants/Blumen Meier/2026-11/A 88.pdf")))
    yield ("mailbox-unknown", True, "the customer's mailbox does not exist", "outbox.send_receipt",
        ("oAc", dict(port="@unknown", to="anna.krüger@nordlicht.example".replace("ü", "ue"), number="17")), ("mBc", dict(port="@unknown", to="j.okafor+shop@acme.example", number="A/88")))
    yield ("object-gone", True, "the document is not in its bucket", "outbox.load_document",
        ("oAc", dict(endpoint=S3, bucket="invoices", key="2026/10/INV-17.pdf")), ("nBp", dict(endpoint="http://s3.us.example", bucket="docs", key="acme/a1.pdf")))
    yield ("order-without-date", True, "a client leaves out the due date; pydantic's link carries its version", "intake.accept",
        ("oAp", dict(payload={"id": 7, "customer": "Nordlicht", "amount": 1})), ("mBc", dict(payload={"id": 99120, "customer": "jo@acme.example", "amount": 4.75, "note": "urgent"})))
    yield ("contact-email", True, "bad addresses in an upload; other rows of it", "intake.accept_contacts",
        ("oAc", dict(rows=[GOOD, {**GOOD, "email": "nobody"}])), ("mBc", dict(rows=[{**GOOD, "email": "x@"}, GOOD, GOOD, {**GOOD, "email": "y"}])))
    yield ("invoice-sum", True, "our sum and theirs differ; tenant, number and amounts in our own words", "intake.check_invoice",
        ("oAc", dict(number="2026-0419", tenant="Nordlicht GmbH", expected=119.0, got=118.99)), ("oBc", dict(number="A/88", tenant="Blumen Meier & Töchter", expected=20411.5, got=0)))
    yield ("warehouse-id", True, "an order that the table does not hold: the key is its id", "intake.warehouse_of",
        ("oAc", dict(order_id=48213, table={"1": "HAM"})), ("mBc", dict(order_id="a81f6c0e-7d1f-4a52-9d0b-3d0c6a1f2b77", table={"1": "HAM"})))
    yield ("contact-none", True, "a customer without an entry; its callers were refactored", "intake.notify",
        ("oAc", dict(customer="nordlicht", book={})), ("mBp", dict(customer="acme", book={"acme": None})))
    yield ("resync-given-up", True, "retries of the same task used up; task's and order's id differ", "nightly.resync",
        ("oAc", dict(order=4711)), ("mBc", dict(order="A-99-x7")))
    yield ("rank-too-long", True, "ranking takes longer than its limit; the step in which the clock caught it is chance", "nightly.rank_customers",
        ("oAc", dict(customers=[1, 2, 3], seconds=0.3, length=60_000_000, rounds=1)), ("oAc", dict(customers=[4, 5], seconds=0.3, length=40_000, rounds=60_000_000)))
    yield ("category-loop", True, "a category is its own ancestor; the loop is longer, Python newer", "nightly.category_depth",
        ("oAc", dict(node="a", tree={"a": ["a"]})), ("mBc", dict(node="7", tree={"7": ["8"], "8": ["9"], "9": ["7"]})))
    yield ("distances-memory", True, "a table of all against all; the tenant's size differs", "nightly.distances",
        ("oAc", dict(points=4_000_000)), ("mBc", dict(points=11_900_000)))
    yield ("refresh-502", True, "the shop answers 502; three orders failed instead of one", "carrier.refresh_orders",
        ("oAc", dict(base="http://shop.acme.example:@web", orders=[71])), ("oBc", dict(base="http://shop.beta.example:@web/api", orders=[901, 902, 903])))

    yield ("carrier-401-404", False, "our key ran out; or the shipment is not known", "carrier.track",
        ("oAc", dict(base=GLS, shipment="G-10-401", tenant="acme")), ("oAc", dict(base=GLS, shipment="G-11-404", tenant="acme")))
    yield ("rates-429-500", False, "we ask too often; or their service breaks", "carrier.exchange_rate",
        ("oAc", dict(base=RATES, currency="SEK")), ("oAc", dict(base=RATES, currency="NOK")))
    yield ("label-pickup", False, "the same helper and status: what we send for labels is wrong; or what we send to cancel a pickup", ("carrier.create_label", "carrier.cancel_pickup"),
        ("oAc", dict(base=GLS, shipment="G-1")), ("oAc", dict(base=GLS, pickup="P-1")))
    yield ("booking-reasons", False, "no house number; or no customs value: the reason stands in our own words", "carrier.book",
        ("oAc", dict(base=GLS, carrier="GLS", shipment="G-500123", tenant="nordlicht")), ("oAc", dict(base="http://api.ups.example", carrier="UPS", shipment="1Z-88", tenant="nordlicht")))
    yield ("number-reference", False, "two unique constraints of a table", "ledger.save_invoice",
        ("oAc", dict(dsn=pg, invoice={**ONE, "id": 902, "reference": "R-2"})), ("mBc", dict(dsn=pg, invoice={**ONE, "id": 903, "number": "x", "reference": "R-0"})))
    yield ("null-email-amount", False, "an invoice without an e-mail address; or without an amount", "ledger.save_invoice",
        ("oAc", dict(dsn=pg, invoice={**ONE, "id": 904, "number": "y", "reference": "y", "customer_email": None})), ("oAc", dict(dsn=pg, invoice={**ONE, "id": 905, "number": "z", "reference": "z", "amount": None})))
    yield ("counter-kind", False, "a counter's key holds a list: two uses of a key; or a number too large to count", "ledger.bump",
        ("oAc", dict(port="@keys", counter="seq:acme", fill="list")), ("oAc", dict(port="@keys", counter="seq:beta", fill="9223372036854775807")))
    yield ("settle-timeouts", False, "the lock was not had in time; or the statement took too long, another setting", "ledger.settle",
        ("oAc", dict(dsn=pg, account=1, setup="SET lock_timeout = '100ms'")), ("oAc", dict(dsn=pg, account=1, setup="SET statement_timeout = '100ms'")))
    yield ("role-database", False, "the role is missing; or the database", "ledger.count_open",
        ("oAc", dict(dsn="@role")), ("oAc", dict(dsn="@database")))
    yield ("amount-weight", False, "empty amounts; or empty weights: two lines of a function, one message", "feeds.import_prices",
        ("oAc", dict(rows=[{"sku": "a", "amount": "", "weight": "2"}])), ("mBc", dict(rows=[{"sku": "a", "amount": "2", "weight": ""}])))
    yield ("contacts-articles", False, "two imports that read another encoding", ("feeds.import_contacts", "feeds.import_articles"),
        ("oAc", dict(data="4e616d653bfc626572")), ("oAc", dict(data="4e616d653bfc626572")))
    yield ("export-disk", False, "the disk is full; or the folder was never made", "feeds.store_export",
        ("oAc", dict(path="/dev/full", text="x" * 9)), ("oAc", dict(path="/var/lib/fulfil/exports/acme/1.csv", text="x")))
    yield ("mail-unknown-relay", False, "the mailbox does not exist; or the server does not relay for us", "outbox.send_receipt",
        ("oAc", dict(port="@unknown", to="a@acme.example", number="17")), ("mBc", dict(port="@relay", to="a@acme.example", number="17")))
    yield ("s3-denied-slow", False, "we may not write; or write too fast", "outbox.keep_document",
        ("oAc", dict(endpoint=S3, bucket="labels", key="denied-1.pdf")), ("oAc", dict(endpoint=S3, bucket="labels", key="slow-1.pdf")))
    yield ("pdf-tool", False, "the tool says no to the file; or was killed: memory", "outbox.to_pdf",
        ("oAc", dict(source="/tmp/in-1.html", target="/tmp/1.pdf", tool="@tool")), ("oAc", dict(source="/tmp/in-2.html", target="/tmp/2.pdf", tool="@tool")))
    yield ("order-fields", False, "a client leaves out the date; or writes words as amount", "intake.accept",
        ("oAp", dict(payload={"id": 7, "customer": "Nordlicht", "amount": 1})), ("mBc", dict(payload={**ORDER, "amount": "twelve"})))
    yield ("contact-fields", False, "bad addresses; or no VAT number", "intake.accept_contacts",
        ("oAc", dict(rows=[{**GOOD, "email": "nobody"}])), ("oAc", dict(rows=[{"name": "A", "email": "a@b.example"}])))
    yield ("reminder-shop-vat", False, "the template meets an order without a shop's city; or a rate that is missing", "outbox.reminder",
        ("oAc", dict(customer={"name": "A"}, order={**LATE, "shop": {}}, vat={"rate": 1.19})), ("oAc", dict(customer={"name": "A"}, order=LATE, vat={})))
    yield ("export-reasons", False, "nothing to export; or a template too small: one class, our own words", "intake.export",
        ("oAc", dict(tenant="nordlicht", rows=[], columns=["2026-11-01"])), ("oAc", dict(tenant="nordlicht", rows=[1], columns=["a", "b", "c"])))
    yield ("mandate-iban-bic", False, "the form leaves out the IBAN; or the BIC", "intake.mandate",
        ("oAc", dict(payload={"bank": {"holder": "A", "bic": "X"}})), ("oBc", dict(payload={"bank": {"holder": "A", "iban": "X"}})))
    yield ("slip-customer-courier", False, "an order without a customer; or without a courier: two lines of a function, one message", "intake.packing_slip",
        ("oAc", dict(customer=None, courier="B")), ("oAc", dict(customer="A", courier=None)))
    yield ("two-too-long", False, "two jobs reach their time limit in a helper they share", ("nightly.close_month", "nightly.reprice"),
        ("oAc", dict(month="2026-10", seconds=0.2)), ("oAc", dict(catalogue="x", seconds=0.2)))
    yield ("sync-causes", False, "our own words over two causes: the field was renamed; or no answer in time", "carrier.sync_stock",
        ("oAc", dict(base="http://wms.north.example", tenant="acme", page=1)), ("oAc", dict(base="http://wms.north.example", tenant="acme", page=2)))
    yield ("refresh-inner", False, "inside a group of tasks: the shop answers 502; or its answer lacks the total", "carrier.refresh_orders",
        ("oAc", dict(base="http://shop.acme.example:@web", orders=[71])), ("oAc", dict(base="http://shop.acme.example:@web", orders=[81])))
    yield ("quote-tries", False, "tries used up: their service breaks; or nobody listens", "carrier.fetch_quote",
        ("oAc", dict(base="http://quotes.sea.example", route="HAM-OSL")), ("oAc", dict(base="http://down-quotes.sea.example", route="HAM-RTM")))
