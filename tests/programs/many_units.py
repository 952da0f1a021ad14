"""Writes a C++ project whose compilers need 150 MB and more each: many_units.py DIRECTORY UNITS. `make -C DIRECTORY` builds it, and
prints what the program prints."""

import sys
from pathlib import Path

UNIT = """\
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

namespace unit{n} {{
template <int N> struct Node {{
    std::map<int, std::vector<std::string>> by_number;
    std::unordered_map<std::string, std::shared_ptr<Node<N - 1>>> by_name;
    std::variant<int, double, std::string, std::tuple<int, std::string, Node<N - 1>>> value;
    std::string work(const std::string &text) const {{
        static const std::regex words("([a-z]+)-([0-9]+)");
        std::multimap<int, std::string> sorted;
        for (auto at = std::sregex_iterator(text.begin(), text.end(), words); at != std::sregex_iterator(); ++at)
            sorted.emplace((std::stoi((*at)[2]) * N) % 97, (*at)[1].str());
        std::ostringstream out;
        std::for_each(sorted.begin(), sorted.end(), [&](const auto &pair) {{ out << pair.second << '-' << pair.first + N << ' '; }});
        return Node<N - 1>().work(out.str());
    }}
}};
template <> struct Node<0> {{
    std::string work(const std::string &text) const {{ return text; }}
}};
std::string run() {{ return Node<{depth}>().work("alpha-{n} beta-7 gamma-{n}1 delta-42 "); }}
}}
"""

MAKEFILE = """\
CXX = g++
OBJECTS = {objects}
all: program
	@cat $(OBJECTS) | sha256sum
	@./program
program: $(OBJECTS)
	@$(CXX) -o $@ $^
%.o: %.cpp
	@$(CXX) -std=c++17 -O0 -c -o $@ $<
"""


def main() -> None:
    directory, units = Path(sys.argv[1]), int(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    for n in range(units):
        (directory / f"unit{n}.cpp").write_text(UNIT.format(n=n, depth=8))
    declared = "\n".join(f"namespace unit{n} {{ std::string run(); }}" for n in range(units))
    called = "\n".join(f"    std::cout << unit{n}::run() << '\\n';" for n in range(units))
    (directory / "main.cpp").write_text(f"#include <iostream>\n#include <string>\n{declared}\nint main() {{\n{called}\n}}\n")
    objects = " ".join(f"{name}.o" for name in ["main", *(f"unit{n}" for n in range(units))])
    (directory / "Makefile").write_text(MAKEFILE.format(objects=objects))


main()
