from django.apps import AppConfig


class HouseConfig(AppConfig):
    name = "house"
    label = "dashboard"  # as many projects call theirs
