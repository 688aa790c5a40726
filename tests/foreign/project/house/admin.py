from django.contrib import admin

from house.models import Note, Person


@admin.register(Person)
class PersonAdmin(admin.ModelAdmin):
    list_display = ("email", "is_staff")
    exclude = ("password",)


admin.site.register(Note)
admin.site.site_header = "The house"
