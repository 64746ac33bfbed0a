"""nginx. Whoever tests starts it with a configuration of their own."""

from tools.services.unpacked import Unpacked


class Nginx(Unpacked):
    name = "nginx"
    packages = ("nginx",)
    programs = ("nginx",)
