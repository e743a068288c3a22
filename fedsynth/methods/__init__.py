"""One file per method. Importing this package registers them all; a new file needs no edit elsewhere."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
