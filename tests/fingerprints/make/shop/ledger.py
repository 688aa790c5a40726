#2 import logging

import django
from django.conf import settings
from django.db import connection, models

#2 log = logging.getLogger(__name__)


def setup(database):
    if not settings.configured:
        settings.configure(DATABASES={"default": database}, INSTALLED_APPS=[], DEFAULT_AUTO_FIELD="django.db.models.AutoField", SECRET_KEY="x",
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}])
        django.setup()


def models_of():
    class Entry(models.Model):
        number = models.CharField(max_length=20, unique=True)
        email = models.CharField(max_length=50, unique=True, null=True)
        amount = models.DecimalField(max_digits=6, decimal_places=2)

        class Meta:
            app_label = "shop"
            db_table = "shop_entry"

    with connection.schema_editor() as editor:
        if "shop_entry" not in connection.introspection.table_names():
            editor.create_model(Entry)
    if not Entry.objects.exists():
        Entry.objects.create(number="A-17", email="ann@shop.example", amount=1)
        Entry.objects.create(number="B-99", email="bob@shop.example", amount=1)
        Entry.objects.create(number="tea", email="cy@shop.example", amount=1)
    return Entry


def book(database, number, email, amount=1):
    setup(database)
    entry = models_of()
    #2 log.debug("book %s", number)
    entry.objects.create(number=number, email=email, amount=amount)


def find(database, **wanted):
    setup(database)
    entry = models_of()
    return entry.objects.get(**wanted)


def checked(database, number, email, amount):
    setup(database)
    entry = models_of()
    #2 log.debug("checked")
    entry(number=number, email=email, amount=amount).full_clean()


def listed(database, field):
    setup(database)
    return list(models_of().objects.filter(**{field: 1}))


def raw(database, statement, values=()):
    setup(database)
    models_of()
    with connection.cursor() as cursor:
        #3 log.debug("raw")
        cursor.execute(statement, values)


def letter(database, text, **words):
    setup(database)
    from django.template import Context, Template

    return Template(text).render(Context(words))


def named(database, name):
    setup(database)
    from django.template.loader import get_template

    #2 log.debug("named")
    return get_template(name)


def linked(database, name, number):
    setup(database)
    settings.ROOT_URLCONF = "shop.urls"
    from django.urls import reverse

    return reverse(name, args=[number])
