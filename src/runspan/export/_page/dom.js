// Building the page. Text only ever becomes text nodes: no name in a trace can become markup.

/** Makes an element; `properties` are its attributes, except `on…`, which are listeners. Children are nodes or text. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

/** A table whose columns are `{title, number, cell(row)}`; a cell is a node or text. */
function fillTable(table, { caption, columns, rows, rowProperties = () => ({}) }) {
  const kind = (column) => ({ class: column.number ? 'number' : null });
  table.replaceChildren(
    ...(caption ? [element('caption', {}, caption)] : []),
    element('thead', {}, element('tr', {}, columns.map((column) => element('th', { scope: 'col', ...kind(column) }, column.title)))),
    element('tbody', {}, rows.map((row) => element('tr', rowProperties(row), columns.map((column) => element('td', kind(column), column.cell(row)))))),
  );
}

/** A list of names and values; nothing for an empty one. */
function definitions(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== '');
  if (!shown.length) return null;
  return element('dl', {}, shown.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value instanceof Node ? value : String(value))]));
}

function labelledSelect(id, label, options, chosen, onchange) {
  const select = element('select', { id, onchange: () => onchange(select.value) }, options.map((option) => element('option', { value: option, selected: option === chosen }, option)));
  return [element('label', { for: id }, label), select];
}

/** A text that follows the pointer inside `host`, which is positioned. */
function tipIn(host) {
  const tip = element('div', { class: 'tip', hidden: true });
  host.append(tip);
  return {
    show(text, x, y) {
      tip.textContent = text;
      tip.hidden = false;
      const left = x + 14 + tip.offsetWidth > host.clientWidth ? x - 14 - tip.offsetWidth : x + 14;
      tip.style.left = `${Math.max(0, left)}px`;
      tip.style.top = `${Math.max(host.scrollTop, y - 10)}px`;
    },
    hide() {
      tip.hidden = true;
    },
  };
}
