class ShopError(Exception):
    pass


class PartnerDown(ShopError):
    pass


class CardRefused(ShopError):
    pass


class OutOfStock(ShopError):
    pass
