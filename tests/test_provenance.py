import json

from jaxtrain import provenance
from jaxtrain.config import from_dict


def test_a_description_is_json_that_the_config_comes_back_from():
    config = from_dict({"train": {"steps": 10}})
    described = provenance.describe(config, ("a", "b"), (28, 28, 1), {"train": "1"}, None)
    assert json.loads(json.dumps(described)) == described
    assert from_dict(described["config"]) == config
    assert described["class_names"] == ["a", "b"]
    assert {"jax", "jaxlib", "jaxtrain"} <= set(described["versions"])


def test_processes_may_have_their_data_in_different_places_but_nothing_else():
    def identity(**keys):
        data = {name.removeprefix("data_"): v for name, v in keys.items() if "data_" in name}
        rest = {name: v for name, v in keys.items() if "data_" not in name}
        config = from_dict({"train": {"steps": 10}, "data": data, **rest})
        return provenance.identity(config, {"the split": "1"})

    alone = identity()
    assert alone["the split"] == "1"
    assert identity(data_path="/here", data_threads=7) == alone
    for other in ({"data_cache": "memory"}, {"eval": {"batch_size": 3}}, {"seed": 1}):
        changed = identity(**other)
        assert len([name for name in alone if changed[name] != alone[name]]) == 1
