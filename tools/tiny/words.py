"""Words, facts and phrases the generators draw from; all written for this recipe."""

ADJECTIVES = """blue red north south old new hidden main second third upper lower eastern western small large green
black silver golden outer inner remote local quiet bright heavy narrow round early broken simple frozen wooden dusty
empty gentle hollow iron lucky modern noisy orange plain quick rusty secret tall urban violet warm young""".split()
NOUNS = """vault server office garden tower library station bridge archive engine cabin factory harbor museum kitchen
workshop tunnel laboratory market hangar depot chapel cellar studio castle school temple village island river mountain
valley forest meadow desert canyon lake ocean port road gate door roof window hall attic stable mill farm orchard bakery
cinema theater stadium airport hospital court prison""".split()
SUBJECTS = """teacher farmer sailor pilot doctor baker painter neighbor student captain driver writer singer hunter miner
nurse lawyer plumber tailor gardener miller soldier dancer banker grocer""".split()
VERBS = """carried painted opened closed watched followed repaired counted moved found cleaned described visited bought
sold lifted measured copied borrowed ordered""".split()
OBJECTS = """table letter basket wagon mirror hammer bottle ladder blanket candle barrel carpet saddle kettle lantern
compass notebook pencil clock radio camera bicycle umbrella suitcase violin trumpet curtain pillow bucket anchor""".split()
ADVERBS = ["slowly", "quietly", "today", "again", "yesterday", "twice", "carefully", "before noon", "after lunch",
           "in the morning", "without a word", "near the road", "by the lake", "at night", "on Monday", "in the rain"]
NAMES = """Alice Bruno Clara David Elena Farid Greta Hugo Irene Jonas Karin Liam Maria Nora Oscar Paula Quentin Rosa
Samuel Tara Ursula Victor Wanda Xavier Yusuf Zoe Anton Bella Cyrus Diana Emil Fiona Gustav Hanna Ivan Julia""".split()
CITIES = """Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Helsinki Athens Warsaw Budapest Zurich
Geneva Hamburg Munich Milan Naples Seville Porto Lyon Boston Chicago Denver Seattle Austin Toronto Tokyo Osaka Kyoto
Delhi Cairo Lagos Nairobi Lima Sydney""".split()
CAPITALS = [tuple(p.split(":")) for p in """France:Paris;Germany:Berlin;Spain:Madrid;Italy:Rome;Austria:Vienna;
Portugal:Lisbon;Ireland:Dublin;Norway:Oslo;Finland:Helsinki;Sweden:Stockholm;Denmark:Copenhagen;Greece:Athens;
Poland:Warsaw;Hungary:Budapest;Japan:Tokyo;China:Beijing;India:New Delhi;Egypt:Cairo;Kenya:Nairobi;Peru:Lima;
Chile:Santiago;Argentina:Buenos Aires;Brazil:Brasilia;Canada:Ottawa;Mexico:Mexico City;Cuba:Havana;Turkey:Ankara;
Russia:Moscow;Ukraine:Kyiv;Romania:Bucharest;Bulgaria:Sofia;Croatia:Zagreb;Serbia:Belgrade;Belgium:Brussels;
the Netherlands:Amsterdam;Switzerland:Bern;Iceland:Reykjavik;Thailand:Bangkok;Vietnam:Hanoi;South Korea:Seoul;
Indonesia:Jakarta;Australia:Canberra;New Zealand:Wellington;Morocco:Rabat;Ghana:Accra;Ethiopia:Addis Ababa;
Colombia:Bogota;Ecuador:Quito;Iran:Tehran;Iraq:Baghdad""".replace("\n", "").split(";")]
OPPOSITES = [tuple(p.split(":")) for p in """hot:cold;big:small;up:down;left:right;day:night;fast:slow;open:closed;
full:empty;young:old;early:late;light:dark;soft:hard;wet:dry;rich:poor;happy:sad;high:low;near:far;strong:weak;thick:thin;
clean:dirty;good:bad;long:short;quiet:loud;true:false;first:last;inside:outside;push:pull;win:lose;buy:sell;
begin:end""".replace("\n", "").split(";")]
DEFINITIONS = [
    ("a list", "A list is an ordered collection of values that can change."),
    ("a tuple", "A tuple is an ordered collection of values that cannot change."),
    ("a dictionary", "A dictionary maps keys to values."), ("a set", "A set holds values without order and without doubles."),
    ("a loop", "A loop repeats the same steps several times."), ("a function", "A function is a named piece of code that can be called."),
    ("a variable", "A variable is a name for a value."), ("a string", "A string is a sequence of characters."),
    ("a class", "A class describes what its objects hold and can do."), ("a module", "A module is a file of code that others can import."),
    ("recursion", "Recursion is when a function calls itself."), ("a cache", "A cache keeps results so that they need not be computed again."),
    ("a bug", "A bug is a mistake in a program."), ("a test", "A test checks that code does what it should."),
    ("a token", "A token is a small piece of text with a number."), ("a tree", "A tree is a structure of nodes with branches and no cycles."),
    ("a queue", "A queue gives back first what was put in first."), ("a stack", "A stack gives back first what was put in last."),
    ("a compiler", "A compiler turns source code into instructions for a machine."), ("water", "Water is a clear liquid that every living thing needs."),
    ("the moon", "The moon is the body that circles the earth."), ("the sun", "The sun is the star at the center of our planets."),
    ("rain", "Rain is water that falls from clouds."), ("a river", "A river is water that flows to the sea or a lake."),
    ("bread", "Bread is food baked from flour and water."), ("a map", "A map is a drawing of a place seen from above."),
    ("a clock", "A clock shows the time."), ("a year", "A year is the time in which the earth circles the sun once."),
]
CHATS = [
    (["Hello!", "Hi", "Hi there!", "Hello, I am {name}.", "Good morning!", "Hey, {name} here."],
     ["Hello! How can I help you?", "Hi! What can I do for you?"]),
    (["Thank you!", "Thanks a lot.", "Thanks, that helped.", "Thank you, that was {name}'s question."], ["You are welcome!", "Glad I could help."]),
    (["Who are you?", "What are you?", "What is your name?", "{name} asks: who are you?"], ["I am a very small language model made to test an engine."]),
    (["Goodbye!", "Bye", "See you later.", "Bye from {name}."], ["Goodbye!", "See you soon!"]),
    (["How are you?", "How are you today?", "How do you do? I am {name}."], ["I am fine, thank you. What can I do for you?"]),
    (["What can you do?", "What are you able to do?", "{name} wants to know what you can do."],
     ["I can complete code, find a fact in a long text, write JSON and answer short questions."]),
    (["Name the days of the week.", "List the days of the week for {name}."], ["Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday."]),
    (["Name the months of the year.", "List the months for {name}."],
     ["January, February, March, April, May, June, July, August, September, October, November, December."]),
    (["Count to ten.", "Please count from one to ten.", "Count to ten for {name}."], ["1, 2, 3, 4, 5, 6, 7, 8, 9, 10."]),
    (["Name the seasons.", "Which seasons are there?", "Name the seasons, {name} forgot them."], ["Spring, summer, autumn and winter."]),
    (["Is the sky blue?", "What color is the sky?", "{name} asks what color the sky has."], ["The sky is blue on a clear day."]),
]
FUNCTIONS = [
    ("adds two numbers", "def {f}add({a}, b):\n    return {a} + b", "It returns the sum of both."),
    ("multiplies two numbers", "def {f}multiply({a}, b):\n    return {a} * b", "It returns the product of both."),
    ("computes the factorial", "def {f}factorial({n}):\n    result = 1\n    for i in range(2, {n} + 1):\n        result *= i\n    return result",
     "It multiplies all numbers up to the given one."),
    ("computes Fibonacci numbers", "def {f}fibonacci({n}):\n    {a}, b = 0, 1\n    for _ in range({n}):\n        {a}, b = b, {a} + b\n    return {a}",
     "It walks through the sequence step by step."),
    ("reverses a string", "def {f}reverse({a}):\n    return {a}[::-1]", "The slice walks backwards."),
    ("finds the largest value of a list", "def {f}largest({s}):\n    best = {s}[0]\n    for {a} in {s}:\n        if {a} > best:\n            best = {a}\n    return best",
     "It keeps the best value seen so far."),
    ("finds the smallest value of a list", "def {f}smallest({s}):\n    best = {s}[0]\n    for {a} in {s}:\n        if {a} < best:\n            best = {a}\n    return best",
     "It keeps the least value seen so far."),
    ("sums a list", "def {f}total({s}):\n    result = 0\n    for {a} in {s}:\n        result += {a}\n    return result", "It adds the values one by one."),
    ("counts words in a text", "def {f}count_words(text):\n    return len(text.split())", "It splits the text at spaces."),
    ("checks if a number is even", "def {f}is_even({n}):\n    return {n} % 2 == 0", "An even number has no rest."),
    ("checks if a number is prime", "def {f}is_prime({n}):\n    if {n} < 2:\n        return False\n    for i in range(2, int({n} ** 0.5) + 1):\n        if {n} % i == 0:\n            return False\n    return True",
     "It tries every possible divisor."),
    ("reads a file", "def {f}read_file(path):\n    with open(path) as f:\n        return f.read()", "The file is closed at the end."),
    ("writes a file", "def {f}write_file(path, text):\n    with open(path, \"w\") as f:\n        f.write(text)", "The file is closed at the end."),
    ("removes doubles from a list", "def {f}unique({s}):\n    seen = set()\n    result = []\n    for {a} in {s}:\n        if {a} not in seen:\n            seen.add({a})\n            result.append({a})\n    return result",
     "It keeps the first of each."),
    ("computes the average", "def {f}average({s}):\n    return sum({s}) / len({s})", "It divides the sum by the count."),
    ("counts how often each value occurs", "def {f}count_values({s}):\n    counts = {{}}\n    for {a} in {s}:\n        counts[{a}] = counts.get({a}, 0) + 1\n    return counts",
     "It keeps the counts in a dictionary."),
]
TOOLS = [
    {"name": "get_weather", "description": "Tells the weather of a city.", "parameters": {"city": ("string", "Name of the city")},
     "asks": ["What is the weather in {city}?", "Is it raining in {city}?", "How warm is it in {city} now?"],
     "results": [({"weather": "sunny, {n} degrees"}, "In {city} it is {r_weather}."), ({"weather": "rain, {n} degrees"}, "In {city} it is {r_weather}.")]},
    {"name": "set_timer", "description": "Starts a timer.", "parameters": {"minutes": ("integer", "How many minutes")},
     "asks": ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes."],
     "results": [({"status": "started"}, "The timer runs for {minutes} minutes.")]},
    {"name": "search_files", "description": "Searches files for words.", "parameters": {"query": ("string", "Words to look for")},
     "asks": ["Find files about the {query}.", "Search for {query}.", "Where did I write about the {query}?"],
     "results": [({"found": "{n} files"}, "I found {r_found} about {query}."), ({"found": "nothing"}, "I found {r_found} about {query}.")]},
    {"name": "read_file", "description": "Reads a file.", "parameters": {"path": ("string", "Path of the file")},
     "asks": ["Show me {path}.", "What is in the file {path}?", "Read {path}, please."],
     "results": [({"text": "a note with {n} lines"}, "The file {path} holds {r_text}.")]},
    {"name": "send_money", "description": "Sends money to a person.", "parameters": {"amount": ("integer", "Amount in euros"), "name": ("string", "Who gets it")},
     "asks": ["Send {amount} euros to {name}.", "Please pay {name} {amount} euros."],
     "results": [({"status": "sent"}, "{name} was sent {amount} euros.")]},
    {"name": "set_light", "description": "Sets the light of a room.", "parameters": {"level": ("integer", "Brightness in percent"), "room": ("string", "Name of the room")},
     "asks": ["Set the light in the {room} to {level} percent.", "Dim the {room} to {level}."],
     "results": [({"status": "done"}, "The light in the {room} is at {level} percent.")]},
    {"name": "add_event", "description": "Adds an event to the calendar.", "parameters": {"date": ("string", "Day of the event"), "name": ("string", "Who comes")},
     "asks": ["Plan a meeting with {name} on {date}.", "I meet {name} on {date}, write it down."],
     "results": [({"status": "saved"}, "The meeting with {name} on {date} is in the calendar.")]},
]
