/* vmcompute.dll, which Wine lacks: the Host Networking Service (HNS), version 1 of its interface, as far as wicd and the test
   bed's services ask it. What it knows is in files below C:\testbed\hns, so that all programs of a host share it and a restart
   leaves it.

   Other than the real one:
   - An endpoint that is attached to the host becomes a bridge of Linux without ports, with the endpoint's MAC address and
     address. It is in the list of adapters, and carries nothing. After it has gone, Wine lists it without its addresses
     until the next start.
   - Making a network neither makes a switch nor interrupts the host's connections.
   - Objects have the fields that are asked for here, and no others. Policies are not applied. */
#include <stdarg.h>
#include <stdio.h>
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <objbase.h>

#define STORE "C:\\testbed\\hns"
#define ROOM 4096 /* of an object */
#define MOST 32   /* objects of a kind */

typedef char object_t[ROOM];

/* Large, so not on the stack of the caller's thread. */
static object_t objects[MOST];
static char output[MOST * ROOM + MOST + 2], answer[sizeof output + 256];

/* What follows a JSON value, NULL if there is none. */
static const char *skip(const char *p);

static const char *blank(const char *p) { return p + strspn(p, " \t\r\n"); }

static const char *skip_string(const char *p)
{
    if (*p++ != '"')
        return NULL;
    for (; *p != '"'; p++)
        if ((unsigned char)*p < ' ' || (*p == '\\' && (unsigned char)*++p < ' '))
            return NULL;
    return p + 1;
}

static const char *skip_list(const char *p, char end)
{
    if (*(p = blank(p + 1)) == end)
        return p + 1;
    for (;; p = blank(p + 1)) {
        if (end == '}') {
            if (!(p = skip_string(p)) || *(p = blank(p)) != ':')
                return NULL;
            p = blank(p + 1);
        }
        if (!(p = skip(p)))
            return NULL;
        if (*(p = blank(p)) == end)
            return p + 1;
        if (*p != ',')
            return NULL;
    }
}

static const char *skip(const char *p)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t i;

    if (*p == '"')
        return skip_string(p);
    if (*p == '{' || *p == '[')
        return skip_list(p, *p == '{' ? '}' : ']');
    for (i = 0; i < 3; i++)
        if (!strncmp(p, words[i], strlen(words[i])))
            return p + strlen(words[i]);
    i = strspn(p, "-+.0123456789eE");
    return i ? p + i : NULL;
}

/* Copies a member of an object as it is written; empty if there is none or no room for it. */
static void member(const char *object, const char *name, object_t value)
{
    const char *key = blank(object + 1), *start, *end;
    size_t length = strlen(name);

    for (*value = 0; *key == '"'; key = *end == ',' ? blank(end + 1) : end) {
        start = blank(blank(skip_string(key)) + 1);
        end = skip(start);
        if (!strncmp(key + 1, name, length) && key[length + 1] == '"' && end - start < ROOM) {
            memcpy(value, start, end - start);
            value[end - start] = 0;
        }
        end = blank(end);
    }
}

/* Copies a member that is a string without escapes; empty otherwise. */
static void string(const char *object, const char *name, object_t value)
{
    member(object, name, value);
    if (*value == '"' && !strchr(value, '\\')) {
        value[strlen(value) - 1] = 0;
        memmove(value, value + 1, strlen(value));
    } else {
        *value = 0;
    }
}

/* The path of an object's file. An id is a GUID, which is all that a file is named after. */
static int file(const char *kind, const char *id, char path[MAX_PATH])
{
    if (strlen(id) != 36 || strspn(id, "0123456789abcdefABCDEF-") != 36)
        return 0;
    return snprintf(path, MAX_PATH, STORE "\\%s\\%s.json", kind, id) < MAX_PATH;
}

static int read_file(const char *path, object_t object)
{
    FILE *f = fopen(path, "rb");

    if (!f)
        return 0;
    object[fread(object, 1, ROOM - 1, f)] = 0;
    fclose(f);
    return 1;
}

static int load(const char *kind, const char *id, object_t object)
{
    char path[MAX_PATH];
    return file(kind, id, path) && read_file(path, object);
}

static const char *save(const char *kind, const char *id, const object_t object)
{
    char path[MAX_PATH], part[MAX_PATH + 5];
    FILE *f;

    CreateDirectoryA(STORE, NULL);
    snprintf(path, sizeof path, STORE "\\%s", kind);
    CreateDirectoryA(path, NULL);
    file(kind, id, path);
    snprintf(part, sizeof part, "%s.new", path);
    if (!(f = fopen(part, "wb")))
        return "The object cannot be stored.";
    fputs(object, f);
    if (fclose(f) || !MoveFileExA(part, path, MOVEFILE_REPLACE_EXISTING))
        return "The object cannot be stored.";
    return NULL;
}

/* Reads all objects of a kind into `objects`. */
static int all(const char *kind)
{
    char path[2 * MAX_PATH];
    WIN32_FIND_DATAA found;
    HANDLE find;
    int count = 0;

    snprintf(path, sizeof path, STORE "\\%s\\*.json", kind);
    if ((find = FindFirstFileA(path, &found)) == INVALID_HANDLE_VALUE)
        return 0;
    do {
        snprintf(path, sizeof path, STORE "\\%s\\%s", kind, found.cFileName);
        count += count < MOST && read_file(path, objects[count]);
    } while (FindNextFileA(find, &found));
    FindClose(find);
    return count;
}

/* Whether an object of a kind has this string. */
static int exists(const char *kind, const char *name, const char *wanted)
{
    object_t value;
    int i;

    for (i = all(kind); i-- > 0;) {
        string(objects[i], name, value);
        if (!strcmp(value, wanted))
            return 1;
    }
    return 0;
}

/* Lets Linux run a line of its shell. Wine starts a program of Linux, but neither waits for it nor learns how it ends: so the
   adapter of an endpoint comes a moment after the answer, as on a real host. */
static void run(const char *format, ...)
{
    char line[1024], command[1200];
    STARTUPINFOA start = {.cb = sizeof start};
    PROCESS_INFORMATION process;
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    snprintf(command, sizeof command, "sh -c \"PATH=/usr/sbin:/usr/bin:/sbin:/bin; %s\"", line);
    CreateProcessA("Z:\\bin\\sh", command, NULL, NULL, FALSE, 0, NULL, NULL, &start, &process);
}

static void new_id(char id[37])
{
    GUID g;

    CoCreateGuid(&g);
    snprintf(id, 37, "%08lX-%04X-%04X-%02X%02X-%02X%02X%02X%02X%02X%02X", g.Data1, g.Data2, g.Data3, g.Data4[0], g.Data4[1],
             g.Data4[2], g.Data4[3], g.Data4[4], g.Data4[5], g.Data4[6], g.Data4[7]);
}

/* The address from which the host reaches the world. */
static void management_ip(char text[16])
{
    struct sockaddr_in world = {.sin_family = AF_INET, .sin_port = htons(9)}, own = {0};
    int size = sizeof own;
    WSADATA data;
    SOCKET s;

    WSAStartup(MAKEWORD(2, 2), &data);
    world.sin_addr.s_addr = inet_addr("203.0.113.1");
    s = socket(AF_INET, SOCK_DGRAM, 0);
    connect(s, (struct sockaddr *)&world, sizeof world);
    getsockname(s, (struct sockaddr *)&own, &size);
    snprintf(text, 16, "%s", inet_ntoa(own.sin_addr));
    closesocket(s);
    WSACleanup();
}

/* The first subnet of a network: its first address, the length of its prefix, its gateway. */
static int subnet_of(const char *network, unsigned long *first, unsigned *length, object_t gateway)
{
    object_t subnets, prefix;
    unsigned a, b, c, d;
    char rest;

    member(network, "Subnets", subnets);
    if (*subnets != '[' || *blank(subnets + 1) != '{')
        return 0;
    string(blank(subnets + 1), "AddressPrefix", prefix);
    string(blank(subnets + 1), "GatewayAddress", gateway);
    if (sscanf(prefix, "%u.%u.%u.%u/%u%c", &a, &b, &c, &d, length, &rest) != 5 || (a | b | c | d) > 255 || *length < 8 ||
        *length > 30)
        return 0;
    *first = (a << 24 | b << 16 | c << 8 | d);
    if (*first & (0xffffffffu >> *length) || inet_addr(gateway) == INADDR_NONE)
        return 0;
    return !((ntohl(inet_addr(gateway)) ^ *first) >> (32 - *length));
}

static const char *make_network(const char *request, object_t network)
{
    object_t name, type, subnets, gateway;
    unsigned long first;
    char id[37], ip[16];
    unsigned length;

    string(request, "Name", name);
    string(request, "Type", type);
    member(request, "Subnets", subnets);
    if (!*name || (stricmp(type, "Overlay") && stricmp(type, "L2Bridge")) || !subnet_of(request, &first, &length, gateway))
        return "The parameter is incorrect: Name, Type, or Subnets.";
    /* An overlay is one by its virtual subnet. */
    if (!stricmp(type, "Overlay") && !strstr(subnets, "\"VSID\""))
        return "The parameter is incorrect: the subnet has no policy VSID.";
    if (exists("networks", "Name", name))
        return "A network with this name already exists.";
    new_id(id);
    management_ip(ip);
    if (snprintf(network, ROOM, "{\"ID\":\"%s\",\"Name\":\"%s\",\"Type\":\"%s\",\"Subnets\":%s,\"ManagementIP\":\"%s\",\"State\":1}",
                 id, name, type, subnets, ip) >= ROOM)
        return "Not enough memory.";
    return save("networks", id, network);
}

static const char *make_endpoint(const char *request, object_t endpoint)
{
    object_t name, network_id, network, gateway;
    unsigned long first, ip;
    char id[37], address[16];
    unsigned length;

    string(request, "Name", name);
    string(request, "VirtualNetwork", network_id);
    if (!load("networks", network_id, network))
        return "The network was not found.";
    if (!*name)
        return "The parameter is incorrect: Name.";
    if (exists("endpoints", "Name", name))
        return "An endpoint with this name already exists.";
    subnet_of(network, &first, &length, gateway);
    for (ip = first + 2; ip < first + (0xffffffffu >> length); ip++) {
        snprintf(address, sizeof address, "%lu.%lu.%lu.%lu", ip >> 24, ip >> 16 & 255, ip >> 8 & 255, ip & 255);
        if (strcmp(address, gateway) && !exists("endpoints", "IPAddress", address))
            break;
    }
    new_id(id);
    /* State comes last: attach() changes it. */
    if (snprintf(endpoint, ROOM,
                 "{\"ID\":\"%s\",\"Name\":\"%s\",\"VirtualNetwork\":\"%s\",\"MacAddress\":\"00-15-5D-%02lX-%02lX-%02lX\","
                 "\"IPAddress\":\"%s\",\"PrefixLength\":%u,\"GatewayAddress\":\"%s\",\"State\":1}",
                 id, name, network_id, ip >> 16 & 255, ip >> 8 & 255, ip & 255, address, length, gateway) >= ROOM)
        return "Not enough memory.";
    return save("endpoints", id, endpoint);
}

static const char *attach(const char *id, const char *request, object_t endpoint)
{
    object_t value, mac, address, length;
    char *p;

    string(request, "SystemType", value);
    if (strcmp(value, "Host"))
        return "The parameter is incorrect: only the host exists here.";
    member(request, "CompartmentId", value);
    if (strcmp(value, "1"))
        return "The compartment was not found.";
    member(endpoint, "State", value);
    if (strcmp(value, "1"))
        return "The endpoint is already attached.";
    endpoint[strlen(endpoint) - 2] = '2';
    string(endpoint, "MacAddress", mac);
    for (p = mac; *p; p++)
        *p = *p == '-' ? ':' : *p;
    string(endpoint, "IPAddress", address);
    member(endpoint, "PrefixLength", length);
    run("ip link add hns%.8s address %s type bridge && ip addr add %s/%s dev hns%.8s && ip link set hns%.8s up", id, mac, address,
        length, id, id);
    return save("endpoints", id, endpoint);
}

static void remove_endpoint(const char *id)
{
    char path[MAX_PATH];

    if (!file("endpoints", id, path))
        return;
    DeleteFileA(path);
    run("ip link del hns%.8s", id);
}

static void remove_network(const char *id)
{
    object_t value;
    char path[MAX_PATH];
    int i;

    for (i = all("endpoints"); i-- > 0;) {
        string(objects[i], "VirtualNetwork", value);
        if (stricmp(value, id))
            continue;
        string(objects[i], "ID", value);
        remove_endpoint(value);
    }
    if (file("networks", id, path))
        DeleteFileA(path);
}

/* Does what is asked. Returns why not, or NULL with the JSON text of the result in `output`, if there is one. */
static const char *serve(const char *method, char *path, const char *request)
{
    char *kind = strtok(path, "/"), *id = strtok(NULL, "/"), *verb = strtok(NULL, "/");
    int networks = kind && !strcmp(kind, "networks"), get = !strcmp(method, "GET"), post = !strcmp(method, "POST"), i, count;
    object_t object;
    const char *end, *error;

    if ((!networks && (!kind || strcmp(kind, "endpoints"))) || strtok(NULL, "/"))
        return "The request is not supported.";
    if (post && (*blank(request) != '{' || !(end = skip(blank(request))) || *blank(end)))
        return "Invalid JSON document string.";
    request = blank(request);
    if (!id && get) {
        strcpy(output, "[");
        for (i = 0, count = all(kind); i < count; i++)
            strcat(strcat(output, i ? "," : ""), objects[i]);
        strcat(output, "]");
        return NULL;
    }
    if (!id && post) {
        error = networks ? make_network(request, object) : make_endpoint(request, object);
        strcpy(output, error ? "" : object);
        return error;
    }
    if (!id || !load(kind, id, object))
        return networks ? "The network was not found." : "The endpoint was not found.";
    if (!verb && get) {
        strcpy(output, object);
        return NULL;
    }
    if (!verb && !strcmp(method, "DELETE")) {
        networks ? remove_network(id) : remove_endpoint(id);
        return NULL;
    }
    if (!networks && post && verb && !strcmp(verb, "attach"))
        return attach(id, request, object);
    return "The request is not supported.";
}

static int narrow(const WCHAR *from, char *to, int room)
{
    return from && WideCharToMultiByte(CP_UTF8, 0, from, -1, to, room, NULL, NULL) > 0;
}

__declspec(dllexport) HRESULT WINAPI HNSCall(const WCHAR *method, const WCHAR *path, const WCHAR *request, WCHAR **response)
{
    char verb[16], place[256];
    object_t body;
    const char *error;
    HANDLE mutex;
    int length;

    if (!response || !narrow(method, verb, sizeof verb) || !narrow(path, place, sizeof place) ||
        !narrow(request, body, sizeof body))
        return E_INVALIDARG;
    if (!(mutex = CreateMutexW(NULL, FALSE, L"Global\\testbed-hns")))
        return E_FAIL;
    WaitForSingleObject(mutex, INFINITE);
    *output = 0;
    error = serve(verb, place, body);
    if (error)
        snprintf(answer, sizeof answer, "{\"Success\":false,\"Error\":\"%s\",\"Output\":null}", error);
    else
        snprintf(answer, sizeof answer, "{\"Success\":true%s%s}", *output ? ",\"Output\":" : "", output);
    length = MultiByteToWideChar(CP_UTF8, 0, answer, -1, NULL, 0);
    if ((*response = CoTaskMemAlloc(length * sizeof(WCHAR))))
        MultiByteToWideChar(CP_UTF8, 0, answer, -1, *response, length);
    ReleaseMutex(mutex);
    CloseHandle(mutex);
    return *response ? S_OK : E_OUTOFMEMORY;
}
