from headrace.base.addresses import bracketed


def test_an_ipv6_address_is_in_brackets() -> None:
    assert bracketed("::1") == "[::1]"


def test_a_name_and_an_ipv4_address_are_as_they_were() -> None:
    assert bracketed("localhost") == "localhost"
    assert bracketed("127.0.0.1") == "127.0.0.1"
