"use strict";
// The page of `pushdown explore`. The server searches and draws; this shows what it sends.
// All text from elsewhere is shown through textContent, and pictures are parsed as SVG, never as HTML.

const $ = (selector, within = document) => within.querySelector(selector);
const token = new URLSearchParams(location.search).get("token");
const THEMES = ["system", "light", "dark"];
const BEAMS = [1, 10, 50, 100, 300];
const PLAY_MILLISECONDS = 700;
const MOST_SCALE = 1.3;      // of a tree, where there is room
const CONTROLS = ["token", "layer", "head"];  // of attention
const PLAIN = {              // what a model without an attachment head says in these panels
  parses: "None. This is a plain language model: it predicts the next token and builds no tree.",
  stack: "None. Nothing is attached, so nothing is kept on a stack.",
  dropped: "Nothing. There are no parses to search, and the probabilities are exact.",
  tape: "None. No layer of this model reads a tape.",
};

let models = [];
let readings = [];          // one for each model
let request = null;         // the AbortController of what is being read
let playing = null;

/** The address of a part of the server, with the token if there is one. */
function address(path, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") parameters.append(name, one);
    }
  }
  if (token) parameters.set("token", token);
  const rest = parameters.toString();
  return rest ? `${path}?${rest}` : path;
}

/** Fetch, or an Error with the server's own words. */
async function ask(url, options = {}) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Is `pushdown explore` still running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Error(body.error || `${response.status} ${response.statusText}`);
}

/** An element with text. */
function make(name, text = "", className = "") {
  const element = document.createElement(name);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

/** Put an SVG picture into a place. */
function draw(place, svg) {
  const parsed = new DOMParser().parseFromString(svg, "image/svg+xml");
  place.replaceChildren(document.importNode(parsed.documentElement, true));
}

const bits = (value) => `${value.toFixed(1)} bits`;

/** A probability: 64.3%, 0.002%. */
function percent(value) {
  if (value < 1e-5) return "<0.001%";
  return `${(100 * value).toFixed(value < 0.0005 ? 3 : 1)}%`;
}

/** A row with a probability, a bar and a text. */
function share(probability, text) {
  const row = make("span", "", "share");
  const meter = make("meter");
  meter.value = probability;
  meter.setAttribute("aria-hidden", "true");
  row.append(make("span", percent(probability), "number"), meter, make("span", text, "what"));
  return row;
}

// ------------------------------------------------------------------ one model

class Reading {
  constructor(model, number) {
    this.number = number;
    this.element = $("#reading").content.firstElementChild.cloneNode(true);
    const name = $(".model", this.element);
    name.textContent = model.name;
    name.title = model.model;
    this.element.setAttribute("aria-label", model.name);
    this.status = $(".status", this.element);
    this.tree = $(".figure.tree", this.element);
    this.parses = model.parses;
    if (!model.parses) this.explain();
    for (const name of ["tape", "attention"]) {
      $(`details.${name}`, this.element).addEventListener("toggle", () => { this.showFigures(); remember(); });
    }
    for (const select of this.element.querySelectorAll(".controls select")) {
      select.addEventListener("change", () => { this.showFigures(); remember(); });
    }
    this.reset();
  }

  /** Say in the panels about parses why a plain language model leaves them empty. */
  explain() {
    this.tree.setAttribute("aria-label", "Surprisals");
    for (const [name, text] of Object.entries(PLAIN)) {
      const panel = $(`.${name}`, this.element);
      const title = $("h3, summary", panel);
      $(".count", title)?.remove();
      panel.replaceChildren(title, make("p", text, "note"));
    }
    $(".attention .note", this.element).textContent = "In percent.";
  }

  reset() {
    this.sentence = null;
    this.steps = [];
    this.result = null;
    this.failed = false;
    this.rank = 0;
    this.shown = 0;
    this.height = 0;
    this.tree.style.minHeight = "";
    this.tree.replaceChildren();
    for (const list of this.element.querySelectorAll(".panels ol, .said, .rank, details .figure")) {
      list.replaceChildren();
    }
    $(".downloads", this.element).hidden = true;
    this.say("");
  }

  say(text, isError = false) {
    this.status.textContent = text;
    this.status.classList.toggle("error", isError);
  }

  /** Read a sentence: the records arrive line by line. */
  async read(sentence, beam, signal) {
    this.reset();
    this.say("asking …");
    try {
      const response = await ask(address("api/read"), {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ sentence, model: this.number, beam }),
        signal,
      });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) this.take(JSON.parse(line));
      }
      if (!this.result && !this.failed) this.fail("The connection was lost.");
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error.message);
    }
  }

  take(record) {
    if (record.kind === "waiting") {
      this.say(`waiting: ${record.ahead} ahead`);
    } else if (record.kind === "sentence") {
      this.sentence = record;
    } else if (record.kind === "step") {
      this.steps.push(record);
      this.say(`reading: ${this.steps.length} of ${this.sentence.tokens.length + 1}`);
      arrived();
    } else if (record.kind === "result") {
      this.result = record;
      const lost = record.lost_bits >= 0.05 ? `, about ${bits(record.lost_bits)} lost by the search` : "";
      this.say(`log2 p = ${record.log2_prob.toFixed(2)}${lost}; ${record.seconds.toFixed(2)} s`);
      this.offer();
      arrived();
    } else if (record.kind === "error") {
      this.fail(record.message);
    }
  }

  fail(message) {
    this.failed = true;
    this.say(message, true);
    if (this.sentence || readings.length > 1) arrived();
  }

  /** What a sentence that is read to its end makes possible: downloads and attention. */
  offer() {
    const fill = (name, texts, first) => {
      const select = $(`.controls .${name}`, this.element);
      select.replaceChildren(...(first ? [new Option(first, "")] : []),
        ...texts.map((text, number) => new Option(text, number)));
    };
    fill("token", ["ROOT", ...this.sentence.tokens]);
    const kind = (layer) => (!this.parses || this.result.pushdown_layers.includes(layer)
      ? "" : ", no tape");
    fill("layer", Array.from({ length: this.result.layers }, (_, n) => `${n + 1}${kind(n)}`), "all");
    fill("head", Array.from({ length: this.result.heads }, (_, n) => `${n + 1}`), "mean");
    $(".controls .token", this.element).value = Math.min(this.shown, this.sentence.tokens.length);
    $(".downloads", this.element).hidden = false;
    this.url("json", "reading.json");
    this.url("tsv", "reading.tsv");
  }

  url(name, file, query = {}) {
    $(`.downloads .${name}`, this.element).href = address(`api/readings/${this.sentence.id}/${file}`, query);
  }

  /** The step at which as much of the text is read as `end` characters; the last one for null. */
  stepAt(end) {
    if (end === null) return this.steps.length;
    const read = this.steps.filter((step, n) => n < this.sentence.tokens.length
      && this.sentence.offsets[n][1] <= end);
    return Math.max(1, read.length);
  }

  /** Where in the text a step ends; null for the end of the sentence. */
  endOf(position) {
    const offset = this.sentence.offsets[position - 1];
    return offset ? offset[1] : null;
  }

  show(position, rank = 0) {
    const step = this.steps[position - 1];
    if (!step) return;
    if (position !== this.shown && this.result) {
      $(".controls .token", this.element).value = Math.min(position, this.sentence.tokens.length);
    }
    this.shown = position;
    this.rank = this.parses ? Math.min(rank, step.parses.length - 1) : 0;
    this.showTree(step);
    this.describe(step);
    this.showExpected(step);
    if (this.parses) this.showParses(step);
    this.showFigures();
    if (this.result) this.url("svg", "reading.svg", { step: position, rank: this.rank });
  }

  showTree(step) {
    if (this.rank === 0) {
      this.place(step.picture);
    } else {
      this.fetchFigure(this.tree, "tree.svg", { step: step.position, rank: this.rank });
    }
  }

  place(picture) {
    draw(this.tree, picture);
    const svg = this.tree.firstElementChild;
    const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
    const scale = Math.min(MOST_SCALE, Math.max(1, this.tree.clientWidth / width));
    svg.setAttribute("width", scale * width);
    svg.setAttribute("height", scale * height);
    this.height = Math.max(this.height, scale * height);
    this.tree.style.minHeight = `${this.height}px`;
    const current = $("text.accent[font-weight]", svg);
    if (current && this.tree.scrollWidth > this.tree.clientWidth) {
      this.tree.scrollLeft = scale * current.getAttribute("x") - this.tree.clientWidth / 2;
    }
  }

  /** Fill the list of a panel, and say how much there is. */
  fill(name, count, items) {
    $(`.${name} .count`, this.element).textContent = count;
    $(`.${name} ol`, this.element).replaceChildren(...items);
  }

  showExpected(step) {
    const actual = step.token.replace(/^·/, "");
    this.fill("expected", `entropy ${bits(step.entropy)}`, step.expected.map(({ token: text, probability }) => {
      const item = make("li", "", text === actual ? "actual" : "");
      item.append(share(probability, text));
      return item;
    }));
  }

  showParses(step) {
    this.fill("parses", `${step.num_parses} kept`, step.parses.map((parse, rank) => {
      const button = make("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(rank === this.rank));
      button.disabled = !this.result && rank > 0;
      button.append(share(parse.probability, parse.brackets));
      button.addEventListener("click", () => { this.show(step.position, rank); remember(); });
      const item = make("li");
      item.append(button);
      return item;
    }));
    $(".rank", this.element).textContent = this.describeRank(step.position);

    const constituents = step.stack.map(([start, end]) => this.sentence.tokens.slice(start, end));
    this.fill("stack", "top last", ["ROOT", ...constituents.map((tokens) => tokens.join(" "))]
      .map((text) => make("li", text)));
    const { dropped } = step;
    const count = dropped.count ? `${dropped.count}, ${percent(dropped.share)} in all` : "nothing";
    this.fill("dropped", count, dropped.parses.slice(0, 4).map((parse) => {
      const item = make("li");
      item.append(share(parse.probability, parse.brackets));
      return item;
    }));
  }

  describe(step) {
    const said = $(".said", this.element);
    const parts = [`“${step.token}”: ${bits(step.surprisal)}, where ${bits(step.entropy)} were expected.`];
    if (!this.parses) {
      if (step.position > this.sentence.tokens.length) parts.push("It ends the sentence.");
    } else if (step.attachment === null) {
      parts.push("It closes the tree.");
    } else if (step.attachment === step.position) {
      parts.push("It begins a constituent of its own.");
    } else {
      parts.push(`It attaches to the constituent that ends with “${this.sentence.tokens[step.attachment - 1]}”.`);
    }
    const following = this.steps[step.position];
    if (following) parts.push(`Next token: entropy ${bits(following.entropy)}.`);
    said.textContent = parts.join(" ");
    if (step.continues === false) {
      const badge = make("span", "reanalysis", "badge");
      badge.title = "The most probable parse does not continue the most probable one of the step before.";
      said.prepend(badge);
    }
  }

  describeRank(position) {
    if (!this.result || position >= this.steps.length) return "";
    const rank = this.result.best_ranks[position - 1];
    if (rank === 1) return "The parse that wins in the end is the first here.";
    return rank ? `The parse that wins in the end is number ${rank} here.`
      : "The parse that wins in the end is not among these.";
  }

  /** What is chosen here, as text for the address: the parse, and of each panel whether it is open
   * and what it shows. */
  get view() {
    const open = (name) => Number($(`details.${name}`, this.element).open);
    const chosen = CONTROLS.map((name) => $(`.controls .${name}`, this.element).value);
    return [this.rank, open("tape"), open("attention"), ...chosen].join(".");
  }

  set view(text) {
    if (!this.result) return;
    const [rank, tape, attention, ...chosen] = text.split(".");
    this.show(this.shown, Math.max(0, Number(rank)) || 0);
    CONTROLS.forEach((name, place) => {
      const select = $(`.controls .${name}`, this.element);
      if ([...select.options].some((option) => option.value === chosen[place])) select.value = chosen[place];
    });
    $("details.tape", this.element).open = tape === "1";
    $("details.attention", this.element).open = attention === "1";
    this.showFigures();
  }

  /** The pictures of the open panels, which the server draws on demand. */
  showFigures() {
    if (!this.result) return;
    const open = (name) => $(`details.${name}`, this.element).open;
    const value = (name) => $(`.controls .${name}`, this.element).value;
    if (this.parses && open("tape")) {
      this.fetchFigure($(".tape .figure", this.element), "tape.svg", { step: this.shown, rank: this.rank });
    }
    $(".controls .head", this.element).disabled = value("layer") === "";
    if (open("attention")) {
      const marked = Math.min(Number(value("token")), this.sentence.tokens.length);
      this.fetchFigure($(".attention .figure", this.element), "attention.svg",
        { position: marked, layer: value("layer"), head: value("layer") === "" ? "" : value("head") });
    }
  }

  async fetchFigure(place, file, query) {
    const url = address(`api/readings/${this.sentence.id}/${file}`, query);
    place.dataset.wanted = url;
    try {
      const picture = await (await ask(url)).text();
      if (place.dataset.wanted !== url) return;  // another one is wanted by now
      if (place === this.tree) this.place(picture); else draw(place, picture);
    } catch (error) {
      place.replaceChildren(make("p", error.message, "error"));
    }
  }
}

// ------------------------------------------------------------------ replay

const slider = $("#slider");
let follows = true;         // show each step as it arrives

/** The model whose tokens the slider counts: the first that can read the sentence. */
const leader = () => readings.find((reading) => !reading.failed) || readings[0];

/** A step, a result or an error has arrived. */
function arrived() {
  const first = leader();
  $("#replay").hidden = first.steps.length === 0;
  slider.max = Math.max(1, first.steps.length);
  if (wanted.step && first.steps.length >= wanted.step) {
    slider.value = wanted.step;
    wanted.step = null;
    follows = false;
  } else if (follows && !wanted.step) {
    slider.value = first.steps.length;
  }
  moved();
  if (wanted.views && readings.every((reading) => reading.result || reading.failed)) {
    const views = wanted.views;
    wanted.views = null;
    readings.forEach((reading, number) => { reading.view = views[number] || ""; });
  }
  if (readings.length > 1 && readings.every((reading) => reading.result)) compare();
}

/** Show the step of the slider, and as much of the text in the other model. */
function moved() {
  const position = Number(slider.value);
  const first = leader();
  const others = readings.filter((reading) => reading !== first);
  const step = first.steps[position - 1];
  if (!step) return;
  first.show(position, position === first.shown ? first.rank : 0);
  const end = first.endOf(position);
  for (const other of others) {
    if (!other.steps.length) continue;
    const place = other.stepAt(end);
    other.show(place, place === other.shown ? other.rank : 0);
  }
  $("#place").textContent = `${position} of ${first.sentence.tokens.length + 1}: ${step.token}`;
  slider.setAttribute("aria-valuetext", $("#place").textContent);
}

function moveTo(position) {
  follows = false;
  slider.value = position;
  moved();
  remember();
}

function stop() {
  clearInterval(playing);
  playing = null;
  $("#play").textContent = "Play";
}

function play() {
  if (playing) return stop();
  if (slider.value === slider.max) moveTo(1);
  $("#play").textContent = "Pause";
  playing = setInterval(() => {
    if (Number(slider.value) >= Number(slider.max)) return stop();
    moveTo(Number(slider.value) + 1);
  }, PLAY_MILLISECONDS);
}

async function compare() {
  const numbers = readings.map((reading) => reading.sentence.id);
  const picture = await ask(address("api/compare.svg", { reading: numbers }));
  draw($("#comparison .figure"), await picture.text());
  $("#comparison").hidden = false;
}

// ------------------------------------------------------------------ the address keeps the state

const wanted = { step: null, views: null };

function remember() {
  const state = new URLSearchParams({ s: $("#sentence").value, beam: $("#beam").value });
  if (!follows) state.set("step", slider.value);
  if (readings.some((reading) => reading.result)) {
    state.set("view", readings.map((reading) => reading.view).join("~"));
  }
  history.replaceState(null, "", `#${state}`);
}

function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  if (!state.get("s")) return;
  $("#sentence").value = state.get("s");
  const beam = state.get("beam");
  if (beam && [...$("#beam").options].some((option) => option.value === beam)) $("#beam").value = beam;
  read(Number(state.get("step")) || null, state.get("view")?.split("~"));
}

// ------------------------------------------------------------------ reading

/** Read the sentence with all models; what is being read is given up. */
async function read(step = null, views = null) {
  if (request) request.abort();
  request = new AbortController();
  const { signal } = request;
  await started;
  if (signal.aborted || !readings.length) return;
  stop();
  Object.assign(wanted, { step, views });
  follows = true;
  $("#message").hidden = true;
  $("#replay").hidden = true;
  $("#comparison").hidden = true;
  const [sentence, beam] = [$("#sentence").value, Number($("#beam").value)];
  if (step === null && views === null) remember();
  await Promise.all(readings.map((reading) => reading.read(sentence, beam, signal)));
}

function showTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("#theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("theme", theme);
}

/** What the page can do at once: a sentence that is sent before the models are known waits. */
function listen() {
  showTheme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
  $("#theme").addEventListener("click", () => {
    const next = THEMES.indexOf(localStorage.getItem("theme")) + 1;
    showTheme(THEMES[next % THEMES.length]);
  });
  $("#ask").addEventListener("submit", (event) => { event.preventDefault(); read(); });
  $("#ask button[type=submit]").disabled = false;
  slider.addEventListener("input", () => { stop(); moveTo(Number(slider.value)); });
  $("#previous").addEventListener("click", () => { stop(); moveTo(Math.max(1, slider.value - 1)); });
  $("#next").addEventListener("click", () => {
    stop();
    moveTo(Math.min(slider.max, Number(slider.value) + 1));
  });
  $("#play").addEventListener("click", play);
  $("#link").addEventListener("click", async () => {
    remember();
    await navigator.clipboard.writeText(location.href);
    $("#link").textContent = "Copied";
    setTimeout(() => { $("#link").textContent = "Copy link"; }, 1500);
  });
  addEventListener("hashchange", restore);
  addEventListener("pagehide", () => request?.abort());
}

/** Ask for the models and the examples. */
async function start() {
  let served;
  try {
    served = await (await ask(address("api/models"))).json();
  } catch (error) {
    $("#message").textContent = error.message;
    $("#message").hidden = false;
    return;
  }
  models = served.models;
  $("#sentence").maxLength = served.limits.characters;
  $("#beam").replaceChildren(...BEAMS.filter((beam) => beam <= served.limits.beam)
    .map((beam) => new Option(beam, beam, beam === 50, beam === 50)));
  $("#examples").replaceChildren(...served.examples.map((example) => {
    const button = make("button", example.text);
    button.type = "button";
    button.title = example.shows;
    button.addEventListener("click", () => { $("#sentence").value = example.text; read(); });
    return button;
  }));

  readings = models.map((model, number) => new Reading(model, number));
  $("#readings").classList.toggle("two", models.length > 1);
  $("#readings").replaceChildren(...readings.map((reading) => reading.element));
  if ($("#sentence").value) return;  // someone has begun to type
  if (location.hash) restore();
  else if (served.examples.length) { $("#sentence").value = served.examples[0].text; read(); }
}

listen();
const started = start();
