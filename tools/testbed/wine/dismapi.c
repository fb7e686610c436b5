/* dismapi.dll, which Wine lacks: Windows' features, as far as wicd asks for them. There is one state for all of them. A
   feature is disabled at first, and what enables it takes effect with the next start of Windows, as on a server. The start in
   which it was enabled is kept in the registry. */
#include <windows.h>

#define STAGED 2          /* DismStateStaged: disabled */
#define INSTALLED 4       /* DismStateInstalled */
#define INSTALL_PENDING 5 /* DismStateInstallPending */
#define MEMORY L"SYSTEM\\CurrentControlSet\\Control\\Session Manager\\Memory Management\\PrefetchParameters"
#define TESTBED L"SOFTWARE\\Testbed"

#pragma pack(push, 1)
struct feature {
    const WCHAR *name;
    int state;
    const WCHAR *display_name, *description;
    int restart;
    const void *properties;
    UINT property_count;
};
#pragma pack(pop)

static DWORD number(const WCHAR *key, const WCHAR *name)
{
    DWORD value = 0, size = sizeof value;
    RegGetValueW(HKEY_LOCAL_MACHINE, key, name, RRF_RT_REG_DWORD, NULL, &value, &size);
    return value;
}

__declspec(dllexport) HRESULT WINAPI DismInitialize(int level, const WCHAR *log, const WCHAR *scratch) { return S_OK; }
__declspec(dllexport) HRESULT WINAPI DismShutdown(void) { return S_OK; }
__declspec(dllexport) HRESULT WINAPI DismCloseSession(UINT session) { return S_OK; }

__declspec(dllexport) HRESULT WINAPI DismOpenSession(const WCHAR *image, const WCHAR *windows, const WCHAR *drive, UINT *session)
{
    if (lstrcmpW(image, L"DISM_{53BFAE52-B167-4E2F-A258-0A37B57FF845}"))
        return HRESULT_FROM_WIN32(ERROR_FILE_NOT_FOUND);
    *session = 1;
    return S_OK;
}

__declspec(dllexport) HRESULT WINAPI DismDelete(void *info)
{
    HeapFree(GetProcessHeap(), 0, info);
    return S_OK;
}

__declspec(dllexport) HRESULT WINAPI DismGetFeatureInfo(UINT session, const WCHAR *name, const WCHAR *package, int kind,
                                                        struct feature **info)
{
    DWORD enabled = number(TESTBED, L"FeatureEnabledInBoot");
    if (!(*info = HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, sizeof **info)))
        return E_OUTOFMEMORY;
    (*info)->state = !enabled ? STAGED : enabled == number(MEMORY, L"BootId") ? INSTALL_PENDING : INSTALLED;
    return S_OK;
}

__declspec(dllexport) HRESULT WINAPI DismEnableFeature(UINT session, const WCHAR *name, const WCHAR *package, int kind,
                                                       BOOL limit, const WCHAR **sources, UINT count, BOOL all, HANDLE cancel,
                                                       void *progress, void *data)
{
    DWORD boot = number(MEMORY, L"BootId");
    LSTATUS status = RegSetKeyValueW(HKEY_LOCAL_MACHINE, TESTBED, L"FeatureEnabledInBoot", REG_DWORD, &boot, sizeof boot);
    return status ? HRESULT_FROM_WIN32(status) : HRESULT_FROM_WIN32(ERROR_SUCCESS_REBOOT_REQUIRED);
}
