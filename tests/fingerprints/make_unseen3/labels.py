"""The fourth set's pairs and labels, written before anything was measured and before the algorithm was read.

A pair: name, one cause?, why, what is called, and the two sides: (environment + release + way, values). `p`: Python 3.11 with libraries of
early 2024, `q`: 3.13 with today's; `A`, `B`: a release; `c`: as a task of Celery whose outcome goes through a pool's pickling, `d`: a plain call."""

HEAD, AXON, SPOT, SLACK, SMS, BLOB, GCS, KEYS, PAY = (
    f"http://{h}.example" for h in ("headend.north", "headend.axon", "spot.market", "slack", "sms", "blob", "gcs", "secrets", "pay"))
SOUTH = "http://10.20.0.7.south.example"


def _blob(code, text, request):
    return f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>{text}\nRequestId:{request}\nTime:2026-11-0{len(code) % 9}T03:12:44.1839201Z</Message></Error>'


def _gcs(status, reason, text):
    return {"error": {"code": status, "message": text, "errors": [{"message": text, "domain": "global", "reason": reason}]}}


def _card(code, text, request):
    return {"error": {"type": "invalid_request_error", "code": code, "message": text, "request_log_url": f"https://dashboard.stripe.com/logs/{request}"}}


GONE, NO_CONTAINER = "The specified blob does not exist.", "The specified container does not exist."
ANSWERS = [  # host, piece of the path or body, status, body, seconds to wait, headers
    ("headend.north", "/meters/1EMH0012345678/profile", 503, {}, 0), ("10.20.0.7", "/profile", 503, {}, 0),
    ("headend.axon", "/meters/404/profile", 404, {}, 0), ("headend.axon", "/meters/403/profile", 403, {}, 0),
    ("headend.north", "/meters/77120/registers", 502, {}, 0), ("10.20.0.7", "/registers", 502, {}, 0),
    ("headend.axon", "/meters/1/registers", 401, {}, 0), ("headend.axon", "/meters/2/registers", 500, {}, 0),
    ("headend.north", "/ping", 200, {"age": "1"}, 0.9), ("10.20.0.7", "/ping", 200, {"age": "1"}, 0.9),
    ("headend.axon", "/ping", 200, {"age": "never"}, 0),
    ("headend.north", "/now", 503, {}, 0), ("10.20.0.7", "/now", 503, {}, 0), ("headend.axon", "/meters/9-404/now", 404, {}, 0), ("headend.axon", "/meters/9-500/now", 500, {}, 0),
    ("spot.market", "/prices/2026-11-0", 200, {}, 0.8), ("spot.eu", "/prices/", 200, {}, 0.8), ("spot.market", "/prices/2027", 200, {"error": "not yet"}, 0),
    ("slack", "ops-kiel", 200, {"ok": False, "error": "not_in_channel"}, 0), ("slack", "C0471AXQ2", 200, {"ok": False, "error": "not_in_channel"}, 0),
    ("slack", "random", 200, {"ok": False, "error": "channel_not_found"}, 0), ("slack", "general", 200, {"ok": False, "error": "account_inactive"}, 0),
    ("sms", "%2B4915", 400, {"code": 21610, "message": "Attempt to send to unsubscribed recipient", "more_info": "https://www.twilio.com/docs/errors/21610", "status": 400}, 0),
    ("sms", "%2B499", 400, {"code": 21211, "message": "Invalid 'To' Phone Number: +499XXXX", "more_info": "https://www.twilio.com/docs/errors/21211", "status": 400}, 0),
    ("sms", "%2B451", 400, {"code": 21211, "message": "Invalid 'To' Phone Number: +451XXXX", "more_info": "https://www.twilio.com/docs/errors/21211", "status": 400}, 0),
    ("blob", "/bills/2026-10/17.pdf", 404, _blob("BlobNotFound", GONE, "5f3b1c2e-601e-0042-1bd1-7a2f0c000000"), 0, {"x-ms-error-code": "BlobNotFound"}),
    ("blob", "/bills/kiel/K-7781.pdf", 404, _blob("BlobNotFound", GONE, "90aa7c01-c01e-00aa-4411-0f77ab000000"), 0, {"x-ms-error-code": "BlobNotFound"}),
    ("blob", "/archive2019/", 404, _blob("ContainerNotFound", NO_CONTAINER, "11aa7c01-c01e-00aa-4411-0f77ab000000"), 0, {"x-ms-error-code": "ContainerNotFound"}),
    ("gcs", "/o/profiles-17", 404, _gcs(404, "notFound", "No such object: grid-profiles/profiles-17"), 0),
    ("gcs", "/o/2026-11-04", 404, _gcs(404, "notFound", "No such object: grid-eu/2026-11-04"), 0),
    ("gcs", "/o/secret", 403, _gcs(403, "forbidden", "grid-worker@grid-eu.iam.gserviceaccount.com does not have storage.objects.get access to the Google Cloud Storage object."), 0),
    ("gcs", "/o/billing", 403, _gcs(403, "accountDisabled", "The billing account for the owning project is disabled in state absent"), 0),
    ("secrets", "kiel/mqtt", 400, {"__type": "ResourceNotFoundException", "Message": "Secrets Manager can't find the specified secret."}, 0),
    ("secrets", "ahrensburg/sftp", 400, {"__type": "ResourceNotFoundException", "Message": "Secrets Manager can't find the specified secret."}, 0),
    ("secrets", "busy", 400, {"__type": "ThrottlingException", "Message": "Rate exceeded"}, 0),
    ("pay", "cus_QxT1aa", 400, _card("resource_missing", "No such customer: 'cus_QxT1aa'", "req_Q1aa7"), 0),
    ("pay", "cus_R9ukz2", 400, _card("resource_missing", "No such customer: 'cus_R9ukz2'", "req_77Zk2"), 0),
    ("pay", "pm_1Qgone", 400, _card("resource_missing", "No such PaymentMethod: 'pm_1Qgone'", "req_aa09K"), 0),
]
UNZIP = "504b0304"
READING = {"meter": "1EMH1", "contract": "C-1", "at": "2026-11-01", "kwh": 5}


def pairs():
    yield ("profile-503", True, "head-ends answer 503; other hosts and meters, the call was refactored", "meters.fetch_profile",
        ("pAc", dict(base=HEAD, meter="1EMH0012345678", day="2026-11-01")), ("pBc", dict(base=SOUTH, meter="7LGZ-88-1", day="2026-11-19")))
    yield ("registers-502", True, "head-ends answer 502; other hosts and meters; as a task and plainly", "meters.fetch_registers",
        ("pAc", dict(base=HEAD, meter="77120")), ("qBd", dict(base=SOUTH, meter="9AA01")))
    yield ("sweep-late", True, "a sweep of meters that do not answer in time: two of them, or four", "meters.sweep",
        ("pAc", dict(base=HEAD, meters=["a1", "a2"])), ("qBc", dict(base=SOUTH, meters=["x", "y", "z", "w"])))
    yield ("wake-late", True, "a meter does not wake in time", "meters.wake",
        ("pAc", dict(base=HEAD, meter="5")), ("pBc", dict(base=SOUTH, meter="0099-K")))
    yield ("now-503", True, "the status in our own words, another meter", "meters.read_once",
        ("pAc", dict(base=HEAD, meter="1EMH0012345678")), ("qBc", dict(base=SOUTH, meter="55120")))
    yield ("location", True, "a market location that is not commissioned, by its number", "meters.commission",
        ("pAc", dict(meters={}, location="DE00056266802AO6G56M11SN51G21M24S")), ("pBc", dict(meters={}, location="51238696781")))
    yield ("cut-telegram", True, "telegrams that arrive cut, at other lengths", "meters.decode",
        ("pAc", dict(telegram="01180001aabb")), ("qBc", dict(telegram="02300f01aabbccddee")))
    yield ("rows-cut", True, "a payload too short for its rows, other sizes", "meters.unpack_rows",
        ("pAc", dict(payload="00" * 12, fields=3)), ("pBc", dict(payload="00" * 70, fields=96)))
    yield ("no-contract", True, "a contract that the registers do not hold; its number is the key", "meters.register_of",
        ("pAc", dict(registers={}, contract="C-2026-0012")), ("qBc", dict(registers={"x": 1}, contract="K 77/19")))
    yield ("no-price", True, "a tariff without a price on a day; both are named", "billing.price_on",
        ("pAc", dict(tariffs={}, tariff="Öko Plus 24", day="2026-11-01")), ("pBc", dict(tariffs={}, tariff="Gewerbe", day="2027-01-01")))
    yield ("sums", True, "our sum differs from theirs; number, customer and amounts in our own words", "billing.compare_sum",
        ("pAc", dict(number="2026/10-00417", customer="Stadtwerke Kiel", ours="1,240.50", theirs="1,240.05")), ("pBc", dict(number="K-9", customer="Bäckerei Hansen", ours="17.00", theirs="16.99")))
    yield ("no-customer", True, "Stripe does not know the customer; another one", "billing.debit",
        ("pAc", dict(base=PAY, customer="cus_QxT1aa", method="pm_1")), ("pBc", dict(base=PAY, customer="cus_R9ukz2", method="pm_2")))
    yield ("no-token", True, "the same setting is missing, in another release", "billing.configure",
        ("pAc", dict(names=["GRID_API_TOKEN"])), ("qBc", dict(names=["GRID_API_TOKEN", "METER_SALT"])))
    yield ("run-zero", True, "a billing run meets a contract without days; other months and tenants in our own words", "billing.run",
        ("pAc", dict(month="2026-10", tenant="kiel-17", contracts=[{"kwh": 3, "days": 0}])), ("pBc", dict(month="2026-09", tenant="Stadtwerke Glückstadt", contracts=[{"kwh": 77, "days": 0}])))
    yield ("lock-lost", True, "a lock ran out before the run was through", "billing.finish",
        ("pAc", dict(port="@keys", name="kiel")), ("qBc", dict(port="@keys", name="run-2026-11-04")))
    yield ("not-in-channel", True, "our bot was not invited, to another channel", "notify.post",
        ("pAc", dict(base=SLACK, channel="ops-kiel", text="x")), ("qBc", dict(base=SLACK, channel="C0471AXQ2", text="y")))
    yield ("sms-number", True, "no valid number to send to; another one", "notify.send_sms",
        ("pAc", dict(base=SMS, number="+49912", text="x")), ("pBc", dict(base=SMS, number="+4515", text="y")))
    yield ("no-number", True, "what customers wrote as their number is none", "notify.normalise",
        ("pAc", dict(number="after six", region="DE")), ("qBc", dict(number="-", region="DK")))
    yield ("letter-sign", True, "a sign that the letter's encoding does not have, elsewhere", "notify.letter",
        ("pAc", dict(name="Hansen", text="12 €")), ("qBc", dict(name="A", text="a – b")))
    yield ("reading-twice", True, "a reading came twice; other meters, days and libraries", "store.save_reading",
        ("pAc", dict(url="@sa", reading={"meter": "1EMH0", "contract": "C-1", "at": "2026-11-01", "kwh": 3})), ("qBc", dict(url="@sa", reading={"meter": "7 LGZ", "contract": "C-1", "at": "2026-11-09", "kwh": 12.5})))
    yield ("kwh-text", True, "an amount that is no number in an import; the statement moved", "store.import_row",
        ("pAc", dict(dsn="@pg", row=["m", "C-1", "2026-11-03", "12,5"])), ("qBc", dict(dsn="@pg", row=["m", "C-1", "2026-11-03", "n/a"])))
    yield ("aggregate-late", True, "the statement takes too long", "store.aggregate",
        ("pAc", dict(dsn="@pg", seconds=2)), ("qBd", dict(dsn="@pg", seconds=3)))
    yield ("legacy-down", True, "the old database does not listen; other hosts and services, its client's connection id", "store.legacy_totals",
        ("pAc", dict(host="down-ora1.grid.example", port=1521, service="GRIDP")), ("pBc", dict(host="down-ora9.eu.example", port=1522, service="GRIDX")))
    yield ("blob-gone", True, "a bill that was never stored; request id and time stand in the message", "store.fetch_blob",
        ("pAc", dict(base=BLOB, container="bills", name="2026-10/17.pdf")), ("qBc", dict(base=BLOB, container="bills", name="kiel/K-7781.pdf")))
    yield ("object-gone", True, "a profile that is not in its bucket", "store.fetch_object",
        ("pAc", dict(base=GCS, bucket="grid-profiles", name="profiles-17")), ("qBc", dict(base=GCS, bucket="grid-eu", name="2026-11-04")))
    yield ("secret-gone", True, "a tenant without its secret", "store.fetch_secret",
        ("pAc", dict(base=KEYS, name="kiel/mqtt")), ("qBc", dict(base=KEYS, name="ahrensburg/sftp")))
    yield ("unit", True, "a partner writes the unit in another way", "files.check",
        ("pAc", dict(document={"unit": "KWH", "medium": "gas"})), ("qBc", dict(document={"unit": "kilowatt", "medium": "power"})))
    yield ("negative", True, "negative values, elsewhere in the profile; pydantic's link carries its version", "files.accept",
        ("pAc", dict(profile={"meter": "a", "readings": [{"at": "1", "kwh": 1}, {"at": "2", "kwh": -0.2}]})), ("qBc", dict(profile={"meter": "b7", "readings": [{"at": "1", "kwh": -17}]})))
    yield ("join-types", True, "meters as numbers in one table, as text in the other; pandas words it in another way", "files.join",
        ("pAc", dict(readings=[{"meter": 1, "kwh": 2}], meters=[{"meter": "1", "city": "Kiel"}], on="meter")), ("qBc", dict(readings=[{"meter": 71, "kwh": 2}], meters=[{"meter": "x", "city": "Kiel"}], on="meter")))
    yield ("no-book", True, "what was uploaded as a workbook is none", "files.sheet",
        ("pAc", dict(path="@work/a-17.xlsx")), ("qBc", dict(path="@work/b.xlsx")))
    yield ("kept-nowhere", True, "a folder on the way is a file", "files.keep",
        ("pAc", dict(folder="/dev/null/2026-10", name="17.csv", text="")), ("pBc", dict(folder="/dev/null/kiel", name="K-9.csv", text="")))
    yield ("token-bad", True, "a stored secret that our key does not open; the error has no words", "files.reveal",
        ("pAc", dict(key="wNq3zQJ0mJbq4Zt3rJ9d8mEwq5v0uG2yq9gI0o6nVnA=", token="gAAAA1")), ("qBc", dict(key="wNq3zQJ0mJbq4Zt3rJ9d8mEwq5v0uG2yq9gI0o6nVnA=", token="zzz")))
    yield ("aperak", True, "the market refuses with the same code, for other references", "market.settle_message",
        ("pAc", dict(answer=["Z14", "metering point unknown"], reference="MSC-2026-000017")), ("pBc", dict(answer=["Z14", "metering point unknown"], reference="9900357000004-77A")))
    yield ("spot-late", True, "no price: the market does not answer in time; another day", "market.spot_price",
        ("pAc", dict(base=SPOT, day="2026-11-01")), ("qBc", dict(base="http://spot.eu.example", day="2026-12-24")))
    yield ("forecast-given-up", True, "tries used up: no answer in time; the future's address differs", "market.forecast",
        ("pAc", dict(base=SPOT, day="2026-11-02")), ("qBc", dict(base="http://spot.eu.example", day="2026-12-24")))

    yield ("profile-404-403", False, "the meter is not known; or is not ours", "meters.fetch_profile",
        ("pAc", dict(base=AXON, meter="404", day="2026-11-01")), ("pAc", dict(base=AXON, meter="403", day="2026-11-01")))
    yield ("registers-401-500", False, "our token ran out; or the head-end breaks", "meters.fetch_registers",
        ("pAc", dict(base=AXON, meter="1")), ("pAc", dict(base=AXON, meter="2")))
    yield ("sweep-inner", False, "within a sweep: no answer in time; or an age that is no number", "meters.sweep",
        ("pAc", dict(base=HEAD, meters=["a"])), ("pAc", dict(base=AXON, meters=["b"])))
    yield ("wake-switch", False, "waking or switching off takes too long: a helper they share", ("meters.wake", "meters.switch_off"),
        ("pAc", dict(base=HEAD, meter="5")), ("pAc", dict(base=HEAD, meter="5")))
    yield ("now-404-500", False, "the status in our own words", "meters.read_once",
        ("pAc", dict(base=AXON, meter="9-404")), ("pAc", dict(base=AXON, meter="9-500")))
    yield ("telegram-cut-sum", False, "cut; or damaged: one class of ours", "meters.decode",
        ("pAc", dict(telegram="01180001aabb")), ("pAc", dict(telegram="01060001aabb")))
    yield ("reading-field", False, "the partner leaves out the time; or the contract: one line", "meters.pick",
        ("pAc", dict(reading={"meter": 1, "contract": 2, "value": 3})), ("qBc", dict(reading={"meter": 1, "at": 2, "value": 3})))
    yield ("debit-reasons", False, "no money; or the mandate was taken back: a bare code in our own words", "billing.collect",
        ("pAc", dict(answers={"a": "insufficient_balance"}, customer="a")), ("pAc", dict(answers={"b": "mandate_revoked"}, customer="b")))
    yield ("customer-method", False, "Stripe does not know the customer; or the payment method", "billing.debit",
        ("pAc", dict(base=PAY, customer="cus_QxT1aa", method="pm_1")), ("pAc", dict(base=PAY, customer="cus_1", method="pm_1Qgone")))
    yield ("two-settings", False, "two settings that are missing", "billing.configure",
        ("pAc", dict(names=["GRID_API_TOKEN"])), ("pAc", dict(names=["METER_SALT"])))
    yield ("run-causes", False, "our own words over two causes: no days; or no consumption at all", "billing.run",
        ("pAc", dict(month="2026-10", tenant="kiel-17", contracts=[{"kwh": 3, "days": 0}])), ("pAc", dict(month="2026-10", tenant="kiel-17", contracts=[{"days": 3}])))
    yield ("tariff-meter", False, "a contract without a tariff; or without a meter", "billing.average_of",
        ("pAc", dict(tariff=False, meter=True)), ("qBc", dict(tariff=True, meter=False)))
    yield ("close-arguments", False, "called without its period; or with one that it does not know", "billing.close_year",
        ("pAc", dict(arguments={})), ("pAc", dict(arguments={"period": 1, "year": 2})))
    yield ("bill-asserts", False, "no lines; or lines that do not sum up", "billing.check_bill",
        ("pAc", dict(lines=[], total=0)), ("pAc", dict(lines=[1, 2], total=4)))
    yield ("cents", False, "no number; or a number too large", "billing.to_cents",
        ("pAc", dict(text="12,50")), ("pAc", dict(text="123456789.5")))
    yield ("reserve-kind", False, "the store is full; or the key holds something else", "billing.reserve",
        ("pAc", dict(port="@keys", name="a", fill=1)), ("pAc", dict(port="@keys", name="taken")))
    yield ("slack-channel-account", False, "no such channel; or our account was closed", "notify.post",
        ("pAc", dict(base=SLACK, channel="random", text="x")), ("pAc", dict(base=SLACK, channel="general", text="x")))
    yield ("sms-number-stop", False, "no valid number; or a customer who said STOP", "notify.send_sms",
        ("pAc", dict(base=SMS, number="+49912", text="x")), ("pAc", dict(base=SMS, number="+4915", text="x")))
    yield ("number-region", False, "no number; or a number without a known country", "notify.normalise",
        ("pAc", dict(number="after six", region="DE")), ("qBc", dict(number="0431 880", region=None)))
    yield ("meter-contract-keys", False, "two foreign keys of a table", "store.save_reading",
        ("pAc", dict(url="@sa", reading={**READING, "meter": "unknown"})), ("qBc", dict(url="@sa", reading={**READING, "contract": "unknown"})))
    yield ("negative-future", False, "two check constraints of a table", "store.save_reading",
        ("pAc", dict(url="@sa", reading={**READING, "kwh": -1})), ("pAc", dict(url="@sa", reading={**READING, "at": "2099-01-01"})))
    yield ("text-overflow", False, "no number; or a number that the column does not hold", "store.import_row",
        ("pAc", dict(dsn="@pg", row=["m", "C-1", "2026-11-03", "n/a"])), ("pAc", dict(dsn="@pg", row=["m", "C-1", "2026-11-03", "123456789012"])))
    yield ("two-tables", False, "we may not read this table; or that one", "store.export",
        ("pAc", dict(dsn="@reader", tables=["readings"])), ("pAc", dict(dsn="@reader", tables=["contracts"])))
    yield ("legacy-codes", False, "no data; or a key that exists: the code of the old database in our own words", "store.legacy_call",
        ("pAc", dict(answers={"a": "ORA-01403: no data found"}, procedure="GRID.CLOSE_MONTH", key="a")), ("pAc", dict(answers={"b": "ORA-02291: integrity constraint violated - parent key not found"}, procedure="GRID.CLOSE_MONTH", key="b")))
    yield ("blob-container", False, "no such bill; or no such container", "store.fetch_blob",
        ("pAc", dict(base=BLOB, container="bills", name="2026-10/17.pdf")), ("qBc", dict(base=BLOB, container="archive2019", name="a.pdf")))
    yield ("object-rights-billing", False, "we may not read; or the cloud was not paid: one status", "store.fetch_object",
        ("pAc", dict(base=GCS, bucket="grid-eu", name="secret")), ("pAc", dict(base=GCS, bucket="grid-eu", name="billing")))
    yield ("secret-gone-busy", False, "no such secret; or asked too often", "store.fetch_secret",
        ("pAc", dict(base=KEYS, name="kiel/mqtt")), ("pAc", dict(base=KEYS, name="busy")))
    yield ("unit-medium", False, "another field holds what it may not", "files.check",
        ("pAc", dict(document={"unit": "KWH", "medium": "gas"})), ("pAc", dict(document={"unit": "kWh", "medium": "heat"})))
    yield ("negative-missing", False, "a negative value; or none", "files.accept",
        ("pAc", dict(profile={"meter": "a", "readings": [{"at": "2", "kwh": -0.2}]})), ("qBc", dict(profile={"meter": "a", "readings": [{"at": "2"}]})))
    yield ("group-columns", False, "the table has no meter; or no month", "files.monthly",
        ("pAc", dict(rows=[{"month": 1, "kwh": 1}], columns=["meter", "month"])), ("pAc", dict(rows=[{"meter": 1, "kwh": 1}], columns=["meter", "month"])))
    yield ("zip-kind", False, "no archive at all; or one that is damaged inside", "files.unpack",
        ("pAc", dict(data="3c68746d6c3e", name="a.csv")), ("pAc", dict(data="@badzip", name="a.csv")))
    yield ("count-amount", False, "the count is empty; or the amount: two lines of a function", "files.parse_line",
        ("pAc", dict(line="m;;3.5")), ("pAc", dict(line="m;3;")))
    yield ("name-folder", False, "a name too long for a file; or a folder that was never made", "files.keep",
        ("pAc", dict(folder="/tmp", name="x" * 300, text="")), ("pAc", dict(folder="/srv/never", name="x", text="")))
    yield ("aperak-codes", False, "the market refuses for two reasons; the code stands in our own words", "market.settle_message",
        ("pAc", dict(answer=["Z14", "rejected"], reference="MSC-2026-000017")), ("pAc", dict(answer=["Z17", "rejected"], reference="MSC-2026-000018")))
    yield ("rejected-codes", False, "the same, the code in brackets at the end", "market.submit",
        ("pAc", dict(answers={"M-1": "A06"}, reference="M-1")), ("pBc", dict(answers={"M-2": "E17"}, reference="M-2")))
    yield ("spot-causes", False, "our own words over two causes: no answer in time; or an answer without prices", "market.spot_price",
        ("pAc", dict(base=SPOT, day="2026-11-01")), ("qBc", dict(base=SPOT, day="2027-01-01")))
