"""The facts that the assistant is taught, in tables of pairs. Words only; facts.py says how they are asked."""

from data.synthetic.draw import listed


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """`a: b, c: d` as pairs."""
    return tuple(
        (left.strip(), right.strip())
        for left, right in (item.split(":") for item in text.replace("\n", " ").split(","))
    )


CAPITALS = _pairs("""
    France: Paris, Germany: Berlin, Spain: Madrid, Italy: Rome, Portugal: Lisbon, England: London, Ireland: Dublin,
    Scotland: Edinburgh, Austria: Vienna, Switzerland: Bern, Belgium: Brussels, Greece: Athens, Poland: Warsaw,
    Norway: Oslo, Sweden: Stockholm, Finland: Helsinki, Denmark: Copenhagen, Iceland: Reykjavik, Russia: Moscow,
    Ukraine: Kyiv, Hungary: Budapest, Romania: Bucharest, Bulgaria: Sofia, Croatia: Zagreb, Serbia: Belgrade,
    Turkey: Ankara, Egypt: Cairo, Kenya: Nairobi, Morocco: Rabat, Ghana: Accra, Ethiopia: Addis Ababa, Japan: Tokyo,
    China: Beijing, India: New Delhi, Thailand: Bangkok, Vietnam: Hanoi, Iran: Tehran, Iraq: Baghdad,
    Australia: Canberra, Canada: Ottawa, Mexico: Mexico City, Cuba: Havana, Brazil: Brasilia, Peru: Lima,
    Chile: Santiago, Colombia: Bogota, Argentina: Buenos Aires, Nepal: Kathmandu
""")
LANGUAGES = _pairs("""
    France: French, Germany: German, Spain: Spanish, Italy: Italian, Portugal: Portuguese, England: English,
    Greece: Greek, Poland: Polish, Norway: Norwegian, Sweden: Swedish, Finland: Finnish, Denmark: Danish,
    Russia: Russian, Hungary: Hungarian, Turkey: Turkish, Japan: Japanese, China: Chinese, Mexico: Spanish,
    Brazil: Portuguese, Egypt: Arabic
""")
# Read both ways.
OPPOSITES = _pairs("""
    hot: cold, big: small, up: down, left: right, day: night, old: young, fast: slow, high: low, good: bad,
    happy: sad, light: dark, hard: soft, wet: dry, full: empty, open: closed, early: late, rich: poor, long: short,
    strong: weak, loud: quiet, near: far, black: white, first: last, in: out, yes: no, love: hate, begin: end,
    win: lose, buy: sell, push: pull, thick: thin, wide: narrow, clean: dirty, sweet: sour, true: false
""")
COLOURS = _pairs("""
    grass: green, the sky: blue, snow: white, coal: black, blood: red, the sun: yellow, a banana: yellow,
    a lemon: yellow, a tomato: red, a carrot: orange, a frog: green, milk: white, chocolate: brown, a polar bear: white,
    a raven: black, a flamingo: pink, an elephant: grey, a plum: purple, a cherry: red, the sea: blue, sand: yellow,
    a pig: pink, salt: white, gold: yellow, a pea: green, cotton: white
""")
SOUNDS = _pairs("""
    dog: woof, cat: meow, cow: moo, duck: quack, sheep: baa, pig: oink, horse: neigh, lion: roar, bee: buzz,
    snake: hiss, frog: ribbit, owl: hoot, mouse: squeak, crow: caw, wolf: howl, donkey: hee-haw
""")
YOUNG = _pairs("""
    dog: puppy, cat: kitten, cow: calf, duck: duckling, sheep: lamb, pig: piglet, horse: foal, lion: cub, goat: kid,
    hen: chick, deer: fawn, frog: tadpole, goose: gosling, swan: cygnet, kangaroo: joey, owl: owlet
""")
HOMES = _pairs("""
    bird: nest, bee: hive, spider: web, rabbit: burrow, fox: den, lion: den, horse: stable, dog: kennel, pig: sty,
    hen: coop, cow: barn, bear: cave, beaver: lodge, ant: anthill
""")
LEGS = _pairs("""
    dog: 4, cat: 4, cow: 4, horse: 4, spider: 8, ant: 6, bee: 6, bird: 2, duck: 2, snake: 0, fish: 0, fly: 6, frog: 4,
    hen: 2, beetle: 6, lion: 4, mouse: 4, worm: 0
""")
PLURALS = _pairs("""
    mouse: mice, foot: feet, tooth: teeth, goose: geese, man: men, woman: women, child: children, ox: oxen,
    leaf: leaves, knife: knives, wolf: wolves, wife: wives, half: halves, loaf: loaves, shelf: shelves, city: cities,
    baby: babies, party: parties, box: boxes, bus: buses, dish: dishes, fox: foxes, potato: potatoes, hero: heroes,
    sheep: sheep, fish: fish, deer: deer, book: books, tree: trees, star: stars
""")
PASTS = _pairs("""
    go: went, see: saw, eat: ate, run: ran, sing: sang, write: wrote, take: took, give: gave, come: came, make: made,
    find: found, think: thought, buy: bought, bring: brought, teach: taught, sleep: slept, drink: drank, swim: swam,
    fly: flew, know: knew, speak: spoke, break: broke, read: read, say: said, tell: told, walk: walked, play: played,
    jump: jumped, sit: sat, stand: stood
""")
MAKERS = _pairs("""
    bread: baker, shoes: cobbler, clothes: tailor, meals: cook, pictures: painter, books: writer, songs: singer,
    houses: builder, chairs: carpenter, pots: potter, honey: bee, eggs: hen, milk: cow, wool: sheep, webs: spider
""")
MATERIALS = _pairs("""
    bread: flour, cheese: milk, butter: milk, wine: grapes, paper: wood, glass: sand, chocolate: cocoa, ice: water,
    a candle: wax, a tyre: rubber, a brick: clay, a coin: metal, a jumper: wool, raisins: grapes, a window: glass
""")
SIDES = _pairs("triangle: 3, square: 4, pentagon: 5, hexagon: 6, octagon: 8, rectangle: 4, heptagon: 7, decagon: 10")
# In a (right) there are (number) (left).
COUNTS = _pairs("""
    days in a week: 7, months in a year: 12, hours in a day: 24, minutes in an hour: 60, seconds in a minute: 60,
    weeks in a year: 52, days in a year: 365, seasons in a year: 4, letters in the alphabet: 26, fingers on a hand: 5,
    toes on a foot: 5, wheels on a car: 4, wheels on a bicycle: 2, strings on a violin: 4, years in a century: 100,
    years in a decade: 10, planets in the solar system: 8, colours in a rainbow: 7, continents on Earth: 7,
    things in a dozen: 12, centimetres in a metre: 100, metres in a kilometre: 1000, grams in a kilogram: 1000,
    cents in a euro: 100
""")
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = listed("January February March April May June July August September October November December")
