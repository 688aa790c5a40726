import uuid

from django.contrib.auth.models import AbstractBaseUser, BaseUserManager, PermissionsMixin
from django.db import models


class People(BaseUserManager):
    def create_user(self, email, password=None, **more):
        person = self.model(email=self.normalize_email(email), **more)
        person.set_password(password)
        person.save()
        return person

    def create_superuser(self, email, password=None, **more):
        return self.create_user(email, password, is_staff=True, is_superuser=True, **more)


class Person(AbstractBaseUser, PermissionsMixin):
    """Without a name: the address is what one logs in with."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    email = models.EmailField(unique=True)
    is_staff = models.BooleanField(default=False)
    is_active = models.BooleanField(default=True)

    USERNAME_FIELD = "email"
    objects = People()


class Note(models.Model):
    """The house's own rows."""

    text = models.CharField(max_length=100)
    at = models.DateTimeField()

    def __str__(self):
        return self.text
