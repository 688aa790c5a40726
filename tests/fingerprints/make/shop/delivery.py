#2 import logging

#2 log = logging.getLogger(__name__)


#2 def _weight(parcel):
#2     return parcel["weight"]


def ship(parcel):
    #2 return _weight(parcel) * 2
    return parcel["weight"] * 2


#2 def renamed_label(parcel):
#2     return parcel["street"].title()


def label(parcel):
    #2 return renamed_label(parcel)
    return parcel["street"].title()
