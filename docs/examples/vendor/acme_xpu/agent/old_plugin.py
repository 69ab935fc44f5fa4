"""How Acme's old device plugin was configured: a flag, its variable, and a file in YAML."""

from agent.vendor_api.config_flags import Flag, FlagGroup, FlagKind
from agent.vendor_api.config_inputs import ConfigFiles, ConfigInputs, FileContent, FoundFiles

LIBRARY = Flag(FlagKind.TEXT, ("acme-library",), ("ACME_LIBRARY",), sets="vendors.acme.settings.library")


def library_of_file(files: FoundFiles, node_name: str) -> FileContent:
    """The library that the file names, as the setting `library`."""
    (document,) = files.documents.values()
    library = document.keys().get("library")
    if library is None:
        raise document.refused("needs the key 'library'")
    if not isinstance(library.value, str):
        raise library.refused("expected the path of libacme.so")
    return FileContent({"library": library.value}, {("library",): library})


CONFIG_INPUTS = ConfigInputs(
    flags=FlagGroup("Acme's flags", "As acme-device-plugin had them.", (LIBRARY,)),
    files=(ConfigFiles("configFile", settings=("library",), read=library_of_file, yaml=True),),
)
