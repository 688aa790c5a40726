from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "The house's own."

    def handle(self, **options):
        self.stdout.write("the groups of the house")
