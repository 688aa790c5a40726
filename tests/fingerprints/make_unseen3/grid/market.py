"""The market's messages: prices, and answers with codes."""

import httpx
import tenacity


class MarketFault(Exception):
    pass


class PriceUnavailable(Exception):
    pass


def settle_message(answer, reference):
    code, text = answer
    if code != "Z00":
        raise MarketFault(f"APERAK {code} for {reference}: {text}")


def submit(answers, reference):
    code = answers.get(reference)
    if code:
        raise MarketFault(f"message {reference} was rejected ({code})")


def _ask(base, day):
    with httpx.Client(base_url=base, timeout=0.2) as client:
        answer = client.get(f"/prices/{day}")
        answer.raise_for_status()
        return answer.json()["prices"]


def spot_price(base, day):
    try:
        return _ask(base, day)
    except (httpx.HTTPError, KeyError) as error:
        raise PriceUnavailable(f"no spot price for {day}") from error


@tenacity.retry(stop=tenacity.stop_after_attempt(2))
def _stubborn(base, day):
    return _ask(base, day)


def forecast(base, day):
    prices = _stubborn(base, day)
    return sum(prices) / len(prices)
