"use strict";
(async () => {
  // The data are text and numbers; every text reaches the page by textContent alone.
  const raw = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
  const data = await new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
  const make = (tag, text = "", more = {}) => Object.assign(document.createElement(tag), { textContent: text }, more);
  const at = (selector) => document.querySelector(selector);
  const pairs = (list, known) => list.append(...known.map(([name, text]) => {
    const line = make("div");
    line.append(make("dt", name), make("dd", text));
    return line;
  }));
  const bullets = (list, texts) => list.append(...texts.map((text) => make("li", text)));

  if (data.home) at("#home").href = data.home;
  at("header nav").hidden = !data.home;
  if (!data.rows.length) at("#title").textContent = "There are no records to show yet; attn-zoo run makes one.";
  if (!data.rows.length) return;
  at("main").hidden = false;
  bullets(at("#reading"), data.reading);
  bullets(at("#environments"), data.environments);
  bullets(at("#damaged ul"), data.damaged);
  at("#damaged").hidden = !data.damaged.length;

  // What the page shows of a set besides its rows.
  const facts = (tasks) => at("#facts").replaceChildren(...tasks.map((task) => {
    const shown = make("details");
    const list = make("dl");
    pairs(list, task.facts);
    shown.append(make("summary", task.title), list);
    return shown;
  }));
  // One plot at a time, chosen by its cost; it is decoded when it is chosen.
  const plots = (drawn) => {
    const figure = make("figure");
    const choices = drawn.map(({ title }, chosen) => make("button", title, { type: "button", onclick: () => show(chosen) }));
    const show = (chosen) => {
      const { title, note, svg } = drawn[chosen];
      const link = "data:image/svg+xml;charset=utf-8,";
      figure.replaceChildren(make("img", "", { src: link + encodeURIComponent(svg), alt: `test scores against ${title}` }), make("figcaption", note));
      choices.forEach((choice, place) => choice.setAttribute("aria-pressed", String(place === chosen)));
    };
    at("#plots").replaceChildren(...choices, figure);
    at("#plots").parentElement.hidden = !drawn.length;
    if (drawn.length) show(0);
  };

  // A heading is a button, so that it can be reached and pressed without a mouse; text never becomes markup.
  const heading = (title, note = "", small = "") => () => {
    const button = make("button", title, { type: "button", title: note });
    button.append(make("small", small));
    return button;
  };

  // Tabulator's roles of column groups and of the scrolled body are not those of ARIA.
  const accessible = (table) => table.on("tableBuilt", () => {
    for (const group of table.element.querySelectorAll(".tabulator-col-group")) {
      group.setAttribute("role", "presentation");
      for (const name of ["aria-sort", "aria-title"]) group.removeAttribute(name);
    }
    table.element.querySelector(".tabulator-tableholder").setAttribute("role", "rowgroup");
    table.element.querySelector(".tabulator-table").setAttribute("role", "presentation");
  });
  const number = (text) => {
    const found = parseFloat(text.replaceAll(",", ""));
    return isNaN(found) ? -Infinity : found;
  };
  const heatColumn = (column, place) => ({
    title: "", titleFormatter: heading(column.heading, column.why && `not shaded: ${column.why}`, column.metric), hozAlign: "right", headerSortStartingDir: column.metric.includes("↓") ? "asc" : "desc", headerWordWrap: true, width: 96,
    field: `cells.${place}`, sorter: (a, b) => number(a[0]) - number(b[0]),
    formatter: (cell) => {
      const [text, small, level, kinds, said] = cell.getValue();
      const span = make("span", text, { title: said, className: `${kinds}${level ? ` h${level}` : ""}` });
      if (small) span.append(make("small", small));
      return span;
    },
    cellClick: (_, cell) => { if (cell.getValue()[4]) find(column.title, cell.getValue()[5]); },
  });
  // Known widths spare the browser to measure every column.
  const ARROW = 30; // room for the arrow of sorting beside a heading, which is bold
  const widthOf = (texts) => 34 + 7.5 * Math.min(40, Math.max(...texts.map((text) => text?.length ?? 0)));
  const named = (cell) => make("span", cell.getValue() + (cell.getData().control && cell.getValue() !== "chance" ? " (c)" : ""), { className: cell.getData().control ? "control" : "" });
  let drawn = null;
  const draw = ({ title, summary, heat, notes, facts: tasks, plots: pictures }) => {
    at("#title").textContent = `${title}. Within a task every row has the same network, data and budget; only the attention differs.`;
    at("#summary").replaceChildren();
    pairs(at("#summary"), summary);
    at("#notes").replaceChildren();
    bullets(at("#notes"), notes);
    facts(tasks);
    plots(pictures);
    const lines = heat.lines.map((line, place) => ({ ...line, place }));
    lines.push({ attention: "chance", control: true, cells: heat.chance.map((text) => [text, "", 0, "", "", ""]), beside: heat.beside.map(() => ""), place: lines.length });
    const byDirection = ["bidirectional", "causal"].map((direction) => ({
      title: direction,
      columns: heat.columns.map((column, place) => [column, place]).filter(([column]) => column.direction === direction).map(([column, place]) => heatColumn(column, place)),
    })).filter((group) => group.columns.length);
    for (const group of byDirection.filter((each) => each.columns.length === 1)) group.columns[0].width = Math.max(96, widthOf([group.title]));
    if (drawn) drawn.destroy();
    drawn = new Tabulator("#heat", {
      data: lines, layout: "fitData", maxHeight: "85vh", columnDefaults: { resizable: false },
      columns: [
        { title: "", titleFormatter: heading("attention"), field: "attention", frozen: true, formatter: named },
        ...byDirection,
        ...heat.beside.map((title, place) => ({ title: "", titleFormatter: heading(title), field: `beside.${place}`, hozAlign: "right", headerWordWrap: true, width: Math.max(96, widthOf(lines.map((line) => line.beside[place]))), sorter: (a, b) => number(a) - number(b), formatter: (cell) => make("span", cell.getValue()) })),
      ],
    });
    accessible(drawn);
  };

  // All rows: a cell is [text, number to sort by, tooltip].
  const limit = /^([<>]=?)\s*(-?[\d.]+(?: ?[kMGTP])?)$/;
  const counted = /^(-?[\d.]+) ?([kMGTP])$/; // a number such as 2.4 M
  const amount = (text) => {
    const [, digits, unit] = counted.exec(text) ?? [];
    return unit ? parseFloat(digits) * 1000 ** (1 + "kMGTP".indexOf(unit)) : number(text);
  };
  const matches = (wanted, cell) => {
    const [text, value] = Array.isArray(cell) ? cell : [cell ?? "", null];
    const found = limit.exec(wanted.trim());
    if (!found) return text.toLowerCase().includes(wanted.trim().toLowerCase());
    const shown = amount(text) === -Infinity ? value : amount(text);
    if (shown === null || shown === undefined) return false;
    const end = amount(found[2]);
    return { "<": shown < end, ">": shown > end, "<=": shown <= end, ">=": shown >= end }[found[1]];
  };
  const byNumber = (measured) => (a, b, one, other, column, direction) => {
    const last = direction === "asc" ? 1 : -1;
    const [x, y] = [one.getData().group, other.getData().group];
    if (measured && x !== y) return last * (x < y ? -1 : 1); // measured costs of different groups may not be compared
    const [m, n] = [a?.[1] ?? null, b?.[1] ?? null];
    if (m === null || n === null) return last * ((m === null) - (n === null));
    return m - n;
  };
  const filtered = (title) => ({ headerFilter: "input", headerFilterFunc: matches, headerFilterParams: { elementAttributes: { "aria-label": `filter ${title}` } } });
  const plain = (title, field, more = {}) => ({ title: "", titleFormatter: heading(title), field, formatter: (cell) => make("span", cell.getValue()), ...filtered(title), ...more });
  const table = new Tabulator("#rows", {
    data: data.rows, layout: "fitData", height: "80vh", nestedFieldSeparator: false, columnDefaults: { resizable: false }, renderHorizontal: "basic",
    placeholder: "No row matches the search and the filters.",
    columns: [
      plain("attention", "attention", { frozen: innerWidth > 600, formatter: named, width: Math.max(190, widthOf(data.rows.slice(0, 300).map((row) => row.attention))) }),
      plain("task", "task", { width: 190 }),
      ...(data.sets.length > 1 ? [plain("results", "set", { width: 130 })] : []),
      ...data.columns.map((column) => ({
        title: "", titleFormatter: heading(column.title, column.note), field: column.field, visible: column.shown, hozAlign: column.align, headerSortStartingDir: column.first, width: Math.max(ARROW + widthOf([column.title]), widthOf(data.rows.slice(0, 300).map((row) => row[column.field]?.[0]))),
        sorter: byNumber(column.measured), ...filtered(column.title),
        formatter: (cell) => { const [text, , tip] = cell.getValue() ?? ["-"]; return make("span", text, { title: tip ?? "" }); },
      })),
      plain("unit", "metric", { width: 90 }),
    ],
  });

  accessible(table);

  // Details of a row.
  const dialog = at("dialog");
  const heads = ["seed", "status", "test", "valid", "train", "seconds", "memory", "test data", "environment", "commit", "started", "record"];
  const key = (row) => (row.set ? [row.set, row.task, row.attention] : [row.task, row.attention]).join("|");
  const open = (row) => {
    const list = make("dl");
    pairs(list, row.details);
    const runs = make("table");
    runs.createTHead().append(...heads.map((head) => make("th", head)));
    const body = runs.createTBody();
    for (const run of row.runs) {
      const line = body.insertRow();
      line.append(...run.slice(0, 11).map((text) => make("td", text)));
      line.insertCell().append(make("code", run[11]));
    }
    const scroll = make("div", "", { className: "scroll" });
    scroll.append(runs);
    const pages = make("p");
    for (const [what, address] of row.pages) pages.append(make("a", `Page of the ${what}`, { href: address }), " ");
    at("dialog .body").replaceChildren(make("h3", `${row.attention} on ${row.task}`), pages, list, make("h3", "Runs"), scroll);
    dialog.showModal();
    keep({ row: key(row) });
  };
  dialog.addEventListener("click", (event) => { if (event.target === dialog || event.target.closest(".close")) dialog.close(); });
  dialog.addEventListener("close", () => keep({ row: "" }));

  // What is shown is kept in the address, so that a link leads to it.
  const tools = at("#tools");
  const chooser = at("#sets select");
  const view = new URLSearchParams(location.hash.slice(1));
  const keep = (changes) => {
    for (const [name, value] of Object.entries(changes)) if (value) view.set(name, value); else view.delete(name);
    view.sort();
    history.replaceState(null, "", view.size ? `#${view}` : location.pathname + location.search);
  };
  const count = (rows) => { tools.querySelector("output").textContent = `${rows.length} of ${data.rows.length} rows`; };
  const apply = () => {
    const { set, task, search, controls } = tools.elements;
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    table.setFilter((row) => (!set.value || row.set === set.value) && (!task.value || row.task === task.value) && (controls.checked || !row.control)
      && words.every((word) => `${row.attention} ${row.task} ${row.group}`.toLowerCase().includes(word)));
    keep({ rows: set.value === chooser.value ? "" : set.value || "all", task: task.value, search: search.value, controls: controls.checked ? "" : "no" });
  };
  const find = (task, attention) => {
    const row = data.rows.find((row) => row.set === chooser.value && row.task === task && row.attention === attention);
    if (row) open(row);
  };
  // Tasks of the rows' set, or of all sets.
  const offer = () => {
    const { set, task } = tools.elements;
    const titles = data.sets.filter(({ name }) => !set.value || name === set.value).flatMap((each) => each.facts.map(({ title }) => title));
    task.replaceChildren(make("option", "all", { value: "" }), ...[...new Set(titles)].map((title) => make("option", title, { value: title })));
  };
  const choose = (name) => {
    chooser.value = tools.elements.set.value = name;
    draw(data.sets.find((each) => each.name === name));
    offer();
  };
  for (const { name } of data.sets) {
    chooser.append(make("option", name, { value: name }));
    if (name) tools.elements.set.append(make("option", name, { value: name }));
  }
  at("#sets").hidden = tools.elements.set.parentElement.hidden = data.sets.length === 1;
  chooser.addEventListener("input", () => {
    choose(chooser.value);
    keep({ results: chooser.value === data.sets[0].name ? "" : chooser.value });
    apply();
  });
  tools.elements.set.addEventListener("input", offer);
  const menu = make("div");
  for (const column of data.columns) {
    const box = make("input", "", { type: "checkbox", checked: column.shown, name: `column ${column.field}` });
    box.addEventListener("change", () => {
      table[box.checked ? "showColumn" : "hideColumn"](column.field);
      keep({ [`column ${column.field}`]: box.checked === column.shown ? "" : box.checked ? "yes" : "no" });
    });
    const label = make("label", "", { title: column.note });
    label.append(box, ` ${column.title}`);
    menu.append(label);
    column.box = box;
  }
  at("#columns").append(menu);
  tools.addEventListener("input", (event) => { if (!event.target.closest("#columns")) apply(); });
  tools.addEventListener("submit", (event) => event.preventDefault());

  choose(data.sets.some(({ name }) => name === view.get("results")) ? view.get("results") : data.sets[0].name);
  table.on("rowClick", (_, row) => { if (!getSelection().toString()) open(row.getData()); });
  table.on("tableBuilt", () => {
    const asked = new URLSearchParams(view);
    table.on("dataFiltered", (filters, rows) => {
      count(rows);
      keep({ filters: table.getHeaderFilters().map((filter) => `${filter.field}:${filter.value}`).join("\n") });
    });
    table.on("dataSorted", (sorters) => keep({ sort: sorters.map((sorter) => `${sorter.field}:${sorter.dir}`).join("\n") }));
    if (asked.get("rows")) tools.elements.set.value = asked.get("rows") === "all" ? "" : asked.get("rows");
    offer();
    tools.elements.task.value = asked.get("task") ?? "";
    tools.elements.search.value = asked.get("search") ?? "";
    tools.elements.controls.checked = asked.get("controls") !== "no";
    for (const column of data.columns) {
      const wanted = asked.get(`column ${column.field}`);
      if (wanted) { column.box.checked = wanted === "yes"; column.box.dispatchEvent(new Event("change")); }
    }
    for (const filter of (asked.get("filters") ?? "").split("\n").filter(Boolean)) table.setHeaderFilterValue(filter.split(":")[0], filter.slice(filter.indexOf(":") + 1));
    const sorted = (asked.get("sort") ?? "").split("\n").map((text) => ({ column: text.slice(0, text.lastIndexOf(":")), dir: text.slice(text.lastIndexOf(":") + 1) }));
    const known = sorted.filter(({ column }) => column && table.getColumn(column));
    if (known.length) table.setSort(known);
    apply();
    const row = data.rows.find((row) => key(row) === asked.get("row"));
    if (row) open(row);
    tools.addEventListener("reset", () => setTimeout(() => {
      tools.elements.set.value = chooser.value;
      offer();
      table.clearHeaderFilter();
      for (const column of data.columns) if (column.box.checked !== column.shown) column.box.click();
      apply();
    }));
    document.body.dataset.ready = "yes";
    performance.mark("ready");
  });
})();
