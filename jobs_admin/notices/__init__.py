"""Notices: channels, routing, and deliveries with their tries; forwarding of the audit."""

from jobs_admin.notices.changing import (
    Saved,
    check_channel,
    delete_channel,
    enable,
    end_rotation,
    resend,
    rotate,
    save_channel,
    test,
)
from jobs_admin.notices.delivering import deliver
from jobs_admin.notices.reading import (
    ChannelRow,
    DeliveryPage,
    DeliveryRow,
    LastDelivery,
    channel,
    channels,
    deliveries,
    delivery,
    last_deliveries,
    may_change,
)

__all__ = [
    "ChannelRow",
    "DeliveryPage",
    "DeliveryRow",
    "LastDelivery",
    "Saved",
    "channel",
    "channels",
    "check_channel",
    "delete_channel",
    "deliver",
    "deliveries",
    "delivery",
    "enable",
    "end_rotation",
    "last_deliveries",
    "may_change",
    "resend",
    "rotate",
    "save_channel",
    "test",
]
