"""nginx. Each test starts it with its own configuration."""

from tools.services.unpacked import Unpacked


class Nginx(Unpacked):
    name = "nginx"
    packages = ("nginx",)
    programs = ("nginx",)
