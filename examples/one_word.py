"""The quickstart's task: name a thing of a given kind, in one word.

A row has a `prompt` and the `answers` that are right for it. An answer that is one properly written word and then ends
gets a small reward, and 1 if the word is also right. The kinds in HELD_OUT are never trained on. They are everyday
ones, so the reward on them ends above that on the training prompts.
"""

from __future__ import annotations

import re
from collections.abc import Collection

NAME = "one-word answers"
HELD_OUT = (
    "color",
    "drink",
    "animal",
    "sport",
    "fruit",
    "city",
    "musical instrument",
    "piece of clothing",
)

ANSWERS = {
    "animal": """
        dog cat horse cow pig sheep goat lion tiger bear elephant giraffe zebra monkey gorilla wolf fox rabbit deer
        mouse rat whale dolphin shark snake turtle frog kangaroo koala panda camel donkey squirrel bat otter seal
        leopard cheetah hippo rhino crocodile alligator lizard hamster bird fish eagle owl penguin duck chicken spider
        octopus
    """,
    "bird": """
        eagle owl hawk falcon sparrow robin pigeon dove crow raven parrot penguin duck goose swan chicken turkey
        peacock ostrich flamingo pelican seagull gull woodpecker hummingbird canary cardinal finch swallow stork heron
        crane kingfisher magpie jay vulture albatross puffin toucan kiwi quail wren lark nightingale
    """,
    "fish": """
        salmon tuna trout cod shark bass carp herring sardine anchovy mackerel halibut haddock catfish goldfish pike
        perch eel flounder sole snapper tilapia swordfish marlin barracuda piranha guppy stingray ray sturgeon
    """,
    "insect": """
        ant bee wasp fly mosquito beetle butterfly moth dragonfly grasshopper cricket cockroach termite ladybug
        ladybird flea louse mantis firefly hornet locust aphid bumblebee honeybee caterpillar cicada
    """,
    "fruit": """
        apple banana orange grape pear peach plum cherry mango kiwi lemon lime strawberry blueberry raspberry
        blackberry cranberry pineapple watermelon melon papaya apricot fig date coconut grapefruit pomegranate guava
        avocado tomato nectarine tangerine lychee passionfruit berry berries mangoes
    """,
    "vegetable": """
        carrot potato tomato onion garlic broccoli cauliflower cabbage lettuce spinach kale celery cucumber pepper pea
        bean corn pumpkin squash zucchini eggplant radish turnip beet beetroot leek asparagus artichoke mushroom
        parsnip potatoes tomatoes
    """,
    "drink": """
        water milk tea coffee coke pepsi sprite juice wine beer soda lemonade cola whiskey vodka rum gin cider cocoa
        smoothie milkshake champagne brandy tequila mocha espresso latte cappuccino ale lager punch cocktail margarita
        martini mojito
    """,
    "dessert": """
        cake pie pudding tiramisu brownie cookie cheesecake sorbet gelato custard mousse trifle tart pastry donut
        doughnut cupcake flan crumble cobbler sundae parfait fudge chocolate truffle macaron meringue eclair baklava
        candy pancake waffle
    """,
    "color": """
        red blue green yellow orange purple pink black white brown gray grey violet indigo turquoise teal cyan magenta
        maroon navy beige gold silver crimson scarlet lavender amber ivory azure emerald olive coral
    """,
    "country": """
        france germany italy spain portugal england scotland ireland greece turkey russia china japan india australia
        canada mexico brazil argentina chile peru egypt kenya nigeria morocco sweden norway finland denmark poland
        austria switzerland belgium netherlands thailand vietnam indonesia israel iran iraq pakistan korea colombia
        cuba jamaica ukraine america namibia tanzania USA UK ethiopia ghana madagascar nepal mongolia iceland hungary
        romania bulgaria malaysia singapore philippines US
    """,
    "city": """
        london paris berlin rome madrid lisbon athens moscow beijing tokyo delhi mumbai sydney melbourne toronto
        montreal chicago boston seattle houston dallas miami denver detroit atlanta cairo istanbul dubai singapore
        bangkok seoul vienna prague budapest warsaw amsterdam brussels stockholm oslo dublin venice florence milan
        naples barcelona munich shanghai kyoto osaka
    """,
    "planet": """
        mercury venus earth mars jupiter saturn uranus neptune pluto
    """,
    "sport": """
        soccer football basketball baseball tennis golf hockey rugby cricket swimming running boxing wrestling
        volleyball cycling skiing skating surfing rowing archery gymnastics badminton karate judo fencing sailing
        climbing bowling softball handball snowboarding lacrosse diving polo squash
    """,
    "tool": """
        hammer saw screwdriver calculator wrench drill pliers axe knife shovel spade rake chisel ruler level file
        scissors clamp hoe ladder crowbar mallet pencil pen tape spanner plane anvil sander broom brush needle
        computer
    """,
    "tree": """
        oak pine maple birch willow cedar elm ash beech fir spruce palm cypress redwood sequoia poplar apple cherry
        walnut chestnut eucalyptus baobab banyan olive magnolia mahogany hickory juniper larch teak acacia
    """,
    "flower": """
        rose tulip lily daisy sunflower orchid violet daffodil carnation iris poppy marigold lavender jasmine peony
        lilac dahlia hyacinth pansy petunia magnolia lotus geranium chrysanthemum begonia azalea hibiscus hydrangea
        snowdrop
    """,
    "metal": """
        iron gold silver copper steel aluminum aluminium tin lead zinc nickel titanium platinum bronze brass mercury
        chromium tungsten cobalt magnesium lithium uranium sodium calcium palladium
    """,
    "gemstone": """
        diamond ruby emerald sapphire amethyst topaz opal pearl garnet jade turquoise amber quartz onyx agate
        aquamarine citrine peridot moonstone jasper
    """,
    "musical instrument": """
        piano guitar violin flute drum trumpet saxophone clarinet cello harp oboe trombone tuba banjo ukulele
        accordion organ viola harmonica bassoon bass mandolin lute recorder xylophone keyboard fiddle lyre sitar
        cymbals
    """,
    "piece of furniture": """
        chair table sofa couch bed desk bookcase bookshelf shelf wardrobe dresser cabinet stool bench armchair
        cupboard drawer lamp ottoman nightstand mattress recliner chest
    """,
    "piece of clothing": """
        shirt pants trousers dress skirt jacket coat sweater hat sock shoe scarf glove jeans shorts tie blouse suit
        vest hoodie belt boots cap underwear jumper robe cardigan
    """,
    "vehicle": """
        car truck bus bicycle bike motorcycle train plane airplane boat ship van taxi scooter tram helicopter tractor
        submarine ambulance jeep yacht canoe ferry lorry tank wagon rocket carriage limousine
    """,
    "body part": """
        hand head foot arm leg eye ear nose mouth finger toe knee elbow shoulder neck back chest heart brain stomach
        lung liver kidney tongue tooth teeth hair skin face chin hip wrist ankle thumb lip bone muscle skull tail
    """,
    "job": """
        doctor teacher nurse lawyer engineer chef cook farmer driver pilot artist writer actor baker butcher carpenter
        plumber electrician dentist scientist programmer accountant manager police policeman firefighter soldier
        mechanic waiter waitress singer musician journalist architect librarian barber tailor clerk
    """,
    "hobby": """
        reading writing painting drawing gardening cooking baking fishing hiking dancing singing swimming running
        cycling knitting sewing photography chess gaming camping climbing pottery yoga traveling travelling collecting
        music sailing skiing surfing birdwatching crocheting sculpting
    """,
    "kitchen utensil": """
        spoon fork knife whisk spatula ladle pan pot bowl plate cup grater peeler tongs sieve colander strainer kettle
        mug chopsticks saucepan skillet cutlery glass corkscrew wok blender toaster knives teaspoon
    """,
    "shape": """
        circle square triangle rectangle oval pentagon hexagon octagon diamond star heart cube sphere cylinder cone
        pyramid ellipse rhombus trapezoid parallelogram crescent prism polygon line
    """,
    "season": """
        spring summer autumn fall winter
    """,
    "month": """
        january february march april may june july august september october november december
    """,
    "day of the week": """
        monday tuesday wednesday thursday friday saturday sunday
    """,
    "language": """
        english french german spanish italian portuguese russian chinese japanese arabic hindi korean greek latin
        turkish dutch swedish polish hebrew mandarin cantonese swahili bengali urdu persian danish norwegian finnish
        czech hungarian vietnamese thai welsh irish sanskrit python java
    """,
    "school subject": """
        math mathematics science history geography english biology chemistry physics art music literature algebra
        geometry economics french spanish latin drama philosophy psychology reading writing spelling grammar
    """,
    "emotion": """
        joy happiness sadness anger fear love hate surprise disgust envy jealousy pride shame guilt hope anxiety
        excitement grief loneliness gratitude boredom calm contentment delight sorrow happy sad angry excited rage
        despair empathy compassion
    """,
    "spice": """
        salt pepper cinnamon ginger turmeric cumin paprika nutmeg clove saffron cardamom coriander basil oregano thyme
        rosemary vanilla mustard chili anise fennel mint garlic curry
    """,
    "type of weather": """
        rain snow sun sunny wind windy cloudy fog storm hail thunder rainy snowy foggy stormy sleet drizzle hurricane
        tornado lightning cold hot warm blizzard thunderstorm frost mist humid clear cloud
    """,
    "continent": """
        africa asia europe australia antarctica america oceania
    """,
    "toy": """
        doll ball car train blocks puzzle kite yoyo robot teddy bear lego dollhouse balloon marble top drum plane
        truck dinosaur slinky
    """,
    "building": """
        house school church hospital library museum castle palace hotel bank tower skyscraper theater theatre temple
        mosque cathedral barn factory station office shop store prison apartment cottage mansion warehouse stadium
        lighthouse
    """,
    "kind of cheese": """
        cheddar brie gouda mozzarella parmesan feta swiss camembert ricotta blue stilton edam provolone gruyere
        cottage goat cream roquefort manchego gorgonzola halloumi
    """,
    "dance": """
        ballet waltz tango salsa samba tap jazz swing flamenco foxtrot rumba polka hiphop ballroom disco jive
        breakdance zumba
    """,
    "game": """
        chess checkers monopoly poker scrabble tag soccer football tetris minecraft dominoes bingo cards sudoku
        solitaire cricket tennis bridge backgammon snooker pool darts charades golf hopscotch
    """,
}

WORD = re.compile(r"\s*([A-Za-z]+)[.!]?\s*")
WRITTEN = re.compile(r"[A-Z]?[a-z]+")
# Enough to teach the form. Much more, and a policy that gives one word to every question has nothing left to gain.
WRONG = 0.4


def rows(kinds: Collection[str]) -> list[dict[str, object]]:
    """One row for each kind: its prompt and the words that are right."""
    return [{"prompt": question(kind), "answers": ANSWERS[kind].split()} for kind in kinds]


def splits() -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Training rows and held-out rows."""
    return rows([kind for kind in ANSWERS if kind not in HELD_OUT]), rows(HELD_OUT)


def question(kind: str) -> str:
    article = "an" if kind[0] in "aeiou" else "a"
    return f"Name {article} {kind}. Answer in one word."


def score(answer: str, ended: bool, answers: Collection[str] | None) -> float:
    """Reward of one answer; `ended` is false for one that was cut at the length limit.

    1 for a right answer, plural or not; WRONG for another written word ("Blue", "blue.", not "BLUE" and not "light
    blue"); otherwise 0. Without `answers` every written word is right.
    """
    match = WORD.fullmatch(answer)
    if match is None or not ended:
        return 0.0
    word = match[1]
    written = WRITTEN.fullmatch(word) is not None
    if answers is None:
        return float(written)
    if word in answers or (written and not {word.lower(), word.lower().removesuffix("s")}.isdisjoint(answers)):
        return 1.0
    return WRONG if written else 0.0


def reward(
    completions: list[str | list[dict[str, str]]],
    ended: list[bool],
    answers: list[Collection[str] | None] | None = None,
    **_: object,
) -> list[float]:
    """1 for one written word that is a right answer, 0.4 for another written word, 0 for more words or a cut answer.

    In the form that TRL calls: texts or chat messages, and the dataset's columns. Without a column of answers every
    written word is right.
    """
    texts = [text if isinstance(text, str) else text[-1]["content"] for text in completions]
    return [score(*each) for each in zip(texts, ended, answers or [None] * len(texts), strict=True)]
