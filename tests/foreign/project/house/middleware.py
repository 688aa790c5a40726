from zoneinfo import ZoneInfo

from django.utils import timezone, translation


def signature(get_response):
    def signed(request):
        response = get_response(request)
        # After every page: the zone and the language are still the house's.
        response.headers["House"] = f"{timezone.get_current_timezone_name()} {translation.get_language()}"
        return response

    return signed


def in_lisbon(get_response):
    def moved(request):
        timezone.activate(ZoneInfo("Europe/Lisbon"))
        return get_response(request)

    return moved
